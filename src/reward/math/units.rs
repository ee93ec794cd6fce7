//! Units: which words are one, and what they are worth in the first of their kind.

use num_rational::BigRational;

/// What a unit measures and how many of the kind's first unit it is, as numerator and denominator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// What it measures: units of different kinds are never equal.
    pub kind: &'static str,
    above: i64,
    below: i64,
}

impl Unit {
    /// How many of the kind's first unit one of it is.
    pub fn factor(&self) -> BigRational {
        BigRational::new(self.above.into(), self.below.into())
    }
}

/// The unit that `text` names, such as "cm", "square inches", "km/h" or "per cent of a dollar"; nothing for other words.
pub fn unit(text: &str) -> Option<Unit> {
    let lower = text.to_lowercase();
    let words = lower.trim().trim_matches(|c: char| c == '.' || c == ',');
    let squared = words
        .strip_prefix("square ")
        .or_else(|| words.strip_prefix("sq "))
        .or_else(|| words.strip_prefix("sq. "))
        .or_else(|| words.strip_suffix("^2"))
        .or_else(|| words.strip_suffix("^{2}"))
        .or_else(|| words.strip_suffix(" squared"));
    if let Some(length) = squared {
        return length_unit(length.trim()).map(|u| Unit {
            kind: "area",
            above: u.above.saturating_mul(u.above),
            below: u.below.saturating_mul(u.below),
        });
    }
    let cubed = words
        .strip_prefix("cubic ")
        .or_else(|| words.strip_prefix("cu "))
        .or_else(|| words.strip_suffix("^3"))
        .or_else(|| words.strip_suffix("^{3}"))
        .or_else(|| words.strip_suffix(" cubed"));
    if let Some(length) = cubed {
        let cube = |n: i64| n.saturating_mul(n).saturating_mul(n);
        return length_unit(length.trim()).map(|u| Unit { kind: "volume", above: cube(u.above), below: cube(u.below) });
    }
    if let Some((above, below)) = words.split_once('/').or_else(|| words.split_once(" per ")) {
        let (above, below) = (simple(above.trim())?, simple(below.trim())?);
        if above.kind == "length" && below.kind == "time" {
            return Some(Unit {
                kind: "speed",
                above: above.above.saturating_mul(below.below),
                below: above.below.saturating_mul(below.above),
            });
        }
        return None;
    }
    match words {
        "mph" => Some(Unit { kind: "speed", above: 1_609_344, below: 3_600_000 }),
        "kph" | "kmh" => Some(Unit { kind: "speed", above: 1000, below: 3600 }),
        _ => simple(words),
    }
}

fn length_unit(word: &str) -> Option<Unit> {
    simple(word).filter(|unit| unit.kind == "length")
}

fn simple(word: &str) -> Option<Unit> {
    let (kind, above, below) = match word {
        "m" | "meter" | "meters" | "metre" | "metres" => ("length", 1, 1),
        "cm" | "centimeter" | "centimeters" | "centimetre" | "centimetres" => ("length", 1, 100),
        "mm" | "millimeter" | "millimeters" | "millimetre" | "millimetres" => ("length", 1, 1000),
        "dm" | "decimeter" | "decimeters" | "decimetre" | "decimetres" => ("length", 1, 10),
        "km" | "kilometer" | "kilometers" | "kilometre" | "kilometres" => ("length", 1000, 1),
        "in" | "inch" | "inches" => ("length", 254, 10_000),
        "ft" | "foot" | "feet" => ("length", 3048, 10_000),
        "yd" | "yds" | "yard" | "yards" => ("length", 9144, 10_000),
        "mi" | "mile" | "miles" => ("length", 1_609_344, 1000),
        "s" | "sec" | "secs" | "second" | "seconds" => ("time", 1, 1),
        "min" | "mins" | "minute" | "minutes" => ("time", 60, 1),
        "h" | "hr" | "hrs" | "hour" | "hours" => ("time", 3600, 1),
        "day" | "days" => ("time", 86_400, 1),
        "week" | "weeks" => ("time", 604_800, 1),
        // A month has no fixed number of days.
        "month" | "months" => ("months", 1, 1),
        "year" | "years" => ("months", 12, 1),
        "g" | "gram" | "grams" => ("mass", 1, 1),
        "kg" | "kilogram" | "kilograms" => ("mass", 1000, 1),
        "mg" | "milligram" | "milligrams" => ("mass", 1, 1000),
        "ton" | "tons" | "tonne" | "tonnes" => ("tons", 1, 1),
        "oz" | "ounce" | "ounces" => ("ounces", 1, 1),
        "lb" | "lbs" | "pound" | "pounds" => ("ounces", 16, 1),
        "l" | "liter" | "liters" | "litre" | "litres" => ("capacity", 1, 1),
        "ml" | "milliliter" | "milliliters" | "millilitre" | "millilitres" => ("capacity", 1, 1000),
        "pint" | "pints" => ("pints", 1, 1),
        "quart" | "quarts" => ("pints", 2, 1),
        "gallon" | "gallons" => ("pints", 8, 1),
        "dollar" | "dollars" | "$" | "usd" => ("dollars", 1, 1),
        "cent" | "cents" | "¢" => ("dollars", 1, 100),
        "yen" | "jpy" => ("yen", 1, 1),
        "hectare" | "hectares" => ("area", 10_000, 1),
        "euro" | "euros" | "€" | "eur" => ("euros", 1, 1),
        "£" | "gbp" => ("pounds sterling", 1, 1),
        "°" | "degree" | "degrees" => ("degrees", 1, 1),
        "radian" | "radians" | "rad" => ("radians", 1, 1),
        _ => return None,
    };
    Some(Unit { kind, above, below })
}
