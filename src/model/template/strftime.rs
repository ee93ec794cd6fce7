//! `strftime_now`: dates as Python's `strftime` writes them, in English and UTC.

use super::invalid;

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] =
    ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];

/// A time of day on a day of the Gregorian calendar.
struct Moment {
    year: u64,
    /// From 0.
    month: usize,
    /// From 1.
    day: u64,
    /// From 0.
    day_of_year: u64,
    /// From Sunday, 0.
    weekday: u64,
    hour: u64,
    minute: u64,
    second: u64,
}

impl Moment {
    fn new(seconds: u64) -> Moment {
        let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        let mut year = 1970;
        let mut day_of_year = seconds / 86400;
        while day_of_year >= 365 + u64::from(leap(year)) {
            day_of_year -= 365 + u64::from(leap(year));
            year += 1;
        }
        let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let (mut month, mut day) = (0, day_of_year);
        while day >= lengths[month] {
            day -= lengths[month];
            month += 1;
        }
        let second = seconds % 86400;
        Moment {
            year,
            month,
            day: day + 1,
            day_of_year,
            weekday: (seconds / 86400 + 4) % 7,
            hour: second / 3600,
            minute: second / 60 % 60,
            second: second % 60,
        }
    }
}

/// The moment `seconds` after the beginning of 1970, written by a format. A directive that is not known is an error.
pub(super) fn strftime(format: &str, seconds: u64) -> Result<String, minijinja::Error> {
    let moment = Moment::new(seconds);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        let unpadded = directive == Some('-');
        if unpadded {
            directive = chars.next();
        }
        let padded = |value: u64, width: usize| if unpadded { value.to_string() } else { format!("{value:0width$}") };
        let hour12 = (moment.hour + 11) % 12 + 1;
        let nested = |format: &str| strftime(format, seconds);
        let written = match directive {
            Some('Y') => padded(moment.year, 4),
            Some('y') => padded(moment.year % 100, 2),
            Some('m') => padded(moment.month as u64 + 1, 2),
            Some('B') => MONTHS[moment.month].into(),
            Some('b' | 'h') => MONTHS[moment.month][..3].into(),
            Some('d') => padded(moment.day, 2),
            Some('e') => format!("{:2}", moment.day),
            Some('j') => padded(moment.day_of_year + 1, 3),
            Some('A') => DAYS[moment.weekday as usize].into(),
            Some('a') => DAYS[moment.weekday as usize][..3].into(),
            Some('w') => moment.weekday.to_string(),
            Some('u') => ((moment.weekday + 6) % 7 + 1).to_string(),
            Some('H') => padded(moment.hour, 2),
            Some('I') => padded(hour12, 2),
            Some('M') => padded(moment.minute, 2),
            Some('S') => padded(moment.second, 2),
            Some('f') => "000000".into(),
            Some('p') => if moment.hour < 12 { "AM" } else { "PM" }.into(),
            Some('s') => seconds.to_string(),
            // A naive time, as Python's datetime.now() is, has no zone.
            Some('Z' | 'z') => String::new(),
            Some('F') => nested("%Y-%m-%d")?,
            Some('T' | 'X') => nested("%H:%M:%S")?,
            Some('R') => nested("%H:%M")?,
            Some('D' | 'x') => nested("%m/%d/%y")?,
            Some('c') => nested("%a %b %e %H:%M:%S %Y")?,
            Some('n') => "\n".into(),
            Some('t') => "\t".into(),
            Some('%') => "%".into(),
            other => {
                return Err(invalid(format!("strftime_now does not know the directive %{}", other.map_or(String::new(), String::from))));
            }
        };
        out.push_str(&written);
    }
    Ok(out)
}
