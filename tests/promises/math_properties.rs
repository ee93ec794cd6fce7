//! What holds of all answers: another spelling is as right, another value never is, and no text can exhaust or break the judge.
//!
//! Values are made up and spelled at random, in LaTeX and in plain text. A verdict must be the same in both directions, from any thread, and the
//! same again; texts of nonsense may have any verdict, but must have one.

use adaroll::reward::Ruling;
use adaroll::reward::math::{Gold, Options};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// The smallest stack that a thread has by default: nothing may need more.
const STACK_BYTES: usize = 2 << 20;

fn gold(text: &str) -> Gold {
    Gold::new(text, Options::default()).unwrap_or_else(|why| panic!("{text:?} {why}"))
}

fn ruling(reference: &str, response: &str) -> Ruling {
    gold(reference).judge(&format!("So it is \\boxed{{{response}}}.")).ruling
}

/// A rational number; the denominator is positive.
type Number = (i64, i64);

/// What an answer may be.
#[derive(Clone, Debug)]
enum Value {
    Number(Number),
    Tuple(Vec<Number>),
    Set(Vec<Number>),
    /// The ends, and whether they belong to it.
    Interval(Number, bool, Number, bool),
    /// The coefficients of a polynomial in x, from the constant one on.
    Polynomial(Vec<i64>),
    /// Rows of equal length.
    Matrix(Vec<Vec<i64>>),
    Word(usize),
    /// x is this.
    Assignment(Number),
}

const WORDS: [&str; 6] = ["Evelyn", "parabola", "even", "Saturday", "no solution", "isosceles"];

/// Numbers that decide how something is spelled: each choice takes one.
struct Choices<'a> {
    numbers: &'a [usize],
    at: usize,
}

impl Choices<'_> {
    fn next(&mut self, count: usize) -> usize {
        let number = self.numbers[self.at % self.numbers.len()];
        self.at += 1;
        number % count
    }

    fn of<'t>(&mut self, texts: &[&'t str]) -> &'t str {
        texts[self.next(texts.len())]
    }
}

fn reduced((above, below): Number) -> Number {
    let (mut a, mut b) = (above.abs(), below.abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    (above / a.max(1) * below.signum(), below.abs() / a.max(1))
}

fn spelled_number(value: Number, choices: &mut Choices) -> String {
    let (above, below) = reduced(value);
    let sign = if above < 0 { choices.of(&["-", "−", "- "]) } else { choices.of(&["", "", "+", "{}"]) };
    let above = above.abs();
    let mut spellings = vec![
        format!("\\frac{{{above}}}{{{below}}}"),
        format!("\\dfrac{{{}}}{{{}}}", 3 * above, 3 * below),
        format!("{{{above}\\over {below}}}"),
        format!("{above}/{below}"),
        format!("({}/{})", 2 * above, 2 * below),
    ];
    if below == 1 {
        spellings.push(format!("{above}"));
        spellings.push(format!("{above}.0"));
        spellings.push(format!("({above})"));
        spellings.push(format!("{{{above}}}"));
        if (1000..1_000_000).contains(&above) {
            spellings.push(format!("{},{:03}", above / 1000, above % 1000));
            spellings.push(format!("{}{{,}}{:03}", above / 1000, above % 1000));
        }
    } else if above > below {
        spellings.push(format!("{}\\frac{{{}}}{{{below}}}", above / below, above % below));
        spellings.push(format!("{}\\ \\tfrac{{{}}}{{{below}}}", above / below, above % below));
    }
    if 1000 % below == 0 && below > 1 {
        let thousandths = above * (1000 / below);
        let decimal = format!("{}.{:03}", thousandths / 1000, thousandths % 1000);
        spellings.push(decimal.trim_end_matches('0').to_owned());
        spellings.push(decimal);
    }
    let at = choices.next(spellings.len());
    format!("{sign}{}", spellings[at])
}

fn joined(values: &[Number], choices: &mut Choices) -> String {
    let comma = choices.of(&[", ", ",  ", ",\\ ", " , "]);
    // "1,100,000" would be one number, and "5,100" too.
    let items = values.iter().map(|value| spelled_number(*value, choices).replace("{,}", "").replace(',', ""));
    items.collect::<Vec<_>>().join(comma)
}

fn bracketed(open: &str, close: &str, inside: &str, choices: &mut Choices) -> String {
    match choices.next(2) {
        0 => format!("{open}{inside}{close}"),
        _ => format!("\\left{open}{inside}\\right{close}"),
    }
}

fn term(coefficient: i64, power: usize) -> String {
    match power {
        0 => format!("({coefficient})"),
        1 => format!("({coefficient})x"),
        _ => format!("({coefficient})x^{{{power}}}"),
    }
}

/// One of the ways to write a value.
fn spelled(value: &Value, numbers: &[usize]) -> String {
    let mut choices = Choices { numbers, at: 0 };
    let bare = match value {
        Value::Number(number) => spelled_number(*number, &mut choices),
        Value::Assignment(number) => {
            format!("x{}{}", choices.of(&["=", " = ", "&="]).trim_start_matches('&'), spelled_number(*number, &mut choices))
        }
        Value::Tuple(items) => {
            let inside = joined(items, &mut choices);
            bracketed("(", ")", &inside, &mut choices)
        }
        Value::Set(items) => {
            let mut items = items.clone();
            let turn = choices.next(items.len());
            items.rotate_left(turn);
            if choices.next(3) == 0 {
                items.reverse();
            }
            if choices.next(4) == 0 {
                items.push(items[0]);
            }
            let inside = joined(&items, &mut choices);
            bracketed("\\{", "\\}", &inside, &mut choices)
        }
        Value::Interval(low, low_closed, high, high_closed) => {
            let (from, to) = (spelled_number(*low, &mut choices), spelled_number(*high, &mut choices));
            let (open, close) = (if *low_closed { "[" } else { "(" }, if *high_closed { "]" } else { ")" });
            let relation = |closed: bool, plain: &'static str, or_equal: &'static str| if closed { or_equal } else { plain };
            match choices.next(4) {
                0 => format!("{open}{from}, {to}{close}"),
                1 => format!("\\left{open}{from},{to}\\right{close}"),
                2 => format!("{from} {} x {} {to}", relation(*low_closed, "<", "\\le"), relation(*high_closed, "\\lt", "\\leq")),
                _ => format!("{to} {} x {} {from}", relation(*high_closed, ">", "≥"), relation(*low_closed, "\\gt", "\\geq")),
            }
        }
        Value::Polynomial(coefficients) => match choices.next(3) {
            0 => coefficients.iter().enumerate().map(|(power, c)| term(*c, power)).collect::<Vec<_>>().join("+"),
            1 => coefficients.iter().enumerate().rev().map(|(power, c)| term(*c, power)).collect::<Vec<_>>().join(" + "),
            // Horner's way.
            _ => {
                let mut text = "0".to_owned();
                for coefficient in coefficients.iter().rev() {
                    text = format!("({text})\\cdot x + ({coefficient})");
                }
                text
            }
        },
        Value::Matrix(rows) => {
            let name = choices.of(&["pmatrix", "bmatrix"]);
            let spelled = |row: &Vec<i64>| row.iter().map(i64::to_string).collect::<Vec<_>>().join(" & ");
            let end = choices.of(&["", "\\\\"]);
            format!("\\begin{{{name}}} {}{end} \\end{{{name}}}", rows.iter().map(spelled).collect::<Vec<_>>().join(" \\\\ "))
        }
        Value::Word(at) => match choices.next(4) {
            0 => WORDS[*at].to_owned(),
            1 => format!("\\text{{{}}}", WORDS[*at]),
            2 => format!("\\textbf{{{}}}", WORDS[*at].to_lowercase()),
            _ => format!("\\text{{ {}. }}", WORDS[*at]),
        },
    };
    match choices.next(5) {
        0 => format!("${bare}$"),
        1 => format!(" {bare} "),
        2 => format!("\\displaystyle {bare}"),
        _ => bare,
    }
}

/// Another value of the same kind, further away than anything is rounded.
fn changed(value: &Value, numbers: &[usize]) -> Value {
    let mut choices = Choices { numbers, at: 0 };
    let mut other = |(above, below): Number| {
        let moved = (above + below * (1 + choices.next(9) as i64), below);
        match choices.next(4) {
            0 if above != 0 => (-above, below),
            1 if above != 0 && reduced((above.abs(), below)) != (1, 1) => reduced((below, above)),
            _ => moved,
        }
    };
    match value {
        Value::Number(number) => Value::Number(other(*number)),
        Value::Assignment(number) => Value::Assignment(other(*number)),
        Value::Tuple(items) => {
            let mut items = items.clone();
            items[0] = other(items[0]);
            Value::Tuple(items)
        }
        // One member more: the largest number and one.
        Value::Set(items) => {
            let more = items.iter().map(|(above, below)| above.abs() / below).max().unwrap_or(0) + 2;
            let mut items = items.clone();
            items.push((more, 1));
            Value::Set(items)
        }
        Value::Interval(low, low_closed, high, high_closed) => match numbers[0] % 3 {
            0 => Value::Interval(*low, !low_closed, *high, *high_closed),
            1 => Value::Interval(*low, *low_closed, *high, !high_closed),
            _ => Value::Interval(*low, *low_closed, (high.0 + high.1, high.1), *high_closed),
        },
        Value::Polynomial(coefficients) => {
            let mut coefficients = coefficients.clone();
            let at = numbers[0] % coefficients.len();
            coefficients[at] += 1 + (numbers[1] % 5) as i64;
            Value::Polynomial(coefficients)
        }
        Value::Matrix(rows) => {
            let mut rows = rows.clone();
            let at = numbers[0] % rows.len();
            rows[at][0] += 1;
            Value::Matrix(rows)
        }
        Value::Word(at) => Value::Word((at + 1 + numbers[0] % (WORDS.len() - 1)) % WORDS.len()),
    }
}

fn number() -> impl Strategy<Value = Number> {
    let below = prop::sample::select(vec![1, 1, 1, 1, 2, 3, 4, 5, 7, 8, 9, 12, 20, 125]);
    prop_oneof![(-40i64..40, below), (-200_000i64..200_000, Just(1))]
}

fn value() -> impl Strategy<Value = Value> {
    let interval = (-20i64..20, any::<bool>(), 1i64..9, any::<bool>(), prop::sample::select(vec![1i64, 2, 3]));
    prop_oneof![
        3 => number().prop_map(Value::Number),
        1 => number().prop_map(Value::Assignment),
        1 => prop::collection::vec(number(), 2..5).prop_map(Value::Tuple),
        1 => prop::collection::vec(number(), 2..5).prop_map(Value::Set),
        1 => interval.prop_map(|(low, low_closed, width, high_closed, below)| {
            Value::Interval((low, below), low_closed, (low + width, below), high_closed)
        }),
        1 => prop::collection::vec(-9i64..10, 2..6).prop_map(Value::Polynomial),
        1 => (1usize..4, 2usize..4).prop_flat_map(|(rows, columns)| {
            prop::collection::vec(prop::collection::vec(-9i64..10, columns), rows).prop_map(Value::Matrix)
        }),
        1 => (0..WORDS.len()).prop_map(Value::Word),
    ]
}

fn choices() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(0usize..1000, 24)
}

/// What LaTeX and plain answers are made of, whole and broken.
const PARTS: [&str; 86] = [
    "1",
    "42",
    "0",
    "3.14",
    "0.333",
    "1,234",
    "-",
    "+",
    "x",
    "y",
    "n",
    "i",
    "e",
    "B",
    "\\pi",
    "\\frac{1}{2}",
    "\\frac",
    "\\sqrt",
    "\\sqrt{2}",
    "\\sqrt[3]",
    "^",
    "_",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "\\{",
    "\\}",
    "|",
    "\\left(",
    "\\right)",
    "\\left|",
    "\\right.",
    "!",
    "'",
    "%",
    "\\%",
    "°",
    "^\\circ",
    "=",
    "<",
    "\\le",
    ">",
    "\\ne",
    "\\approx",
    "\\pm",
    "\\mp",
    "\\cup",
    "\\cap",
    "\\setminus",
    "\\in",
    "\\mathbb{R}",
    "\\infty",
    ",",
    ";",
    ":",
    ".",
    " ",
    "\\ ",
    "\\\\",
    "&",
    "\\begin{pmatrix}",
    "\\end{pmatrix}",
    "\\text{",
    "\\text{ cm}",
    "\\text{and}",
    " or ",
    " and ",
    "\\sin",
    "\\log_",
    "\\sum_{k=1}^{9}",
    "\\binom",
    "\\boxed{",
    "$",
    "\\(",
    "\\]",
    "####",
    "<answer>",
    "</answer>",
    "</think>",
    "The answer is ",
    "**",
    "\\foo",
    "½",
];

fn soup(parts: usize) -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(PARTS.to_vec()), 0..parts).prop_map(|parts| parts.concat())
}

/// A spelling with some parts put in or characters cut out.
fn broken() -> impl Strategy<Value = String> {
    let edits = prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(PARTS.to_vec()), any::<bool>()), 1..4);
    (value(), choices(), edits).prop_map(|(value, numbers, edits)| {
        let mut text: Vec<char> = spelled(&value, &numbers).chars().collect();
        for (at, part, cuts) in edits {
            let at = at.index(text.len() + 1);
            match cuts && at < text.len() {
                true => {
                    text.remove(at);
                }
                false => {
                    text.splice(at..at, part.chars());
                }
            }
        }
        text.into_iter().collect()
    })
}

/// Any verdict is good, if it is one, and the same from everywhere.
fn judged_anyhow(reference: &str, response: &str) -> Result<(), TestCaseError> {
    for options in [Options::default(), Options { lenient: true, gold_in_text: true, ..Options::default() }] {
        let Ok(read) = Gold::new(reference, options.clone()) else { continue };
        // What is understood equals itself; tags and braces that do not match may end the answer elsewhere.
        if read.is_understood() && !read.text().contains(['{', '}', '<', '\\', '#', '$', '*']) {
            let own = read.judge(&format!("\\boxed{{{}}}", read.text()));
            prop_assert!(own.ruling == Ruling::Correct, "{reference:?} is not itself: {own:?}");
        }
        let found = read.judge(response);
        let boxed = read.judge(&format!("\\boxed{{{response}}}"));
        let (again, boxed_again) = elsewhere(reference, response, &options);
        prop_assert_eq!(&found, &again);
        prop_assert_eq!(&boxed, &boxed_again);
        prop_assert!(found.ruling != Ruling::BadGold && boxed.ruling != Ruling::BadGold);
    }
    Ok(())
}

/// The same verdicts from a new thread with the smallest usual stack.
fn elsewhere(reference: &str, response: &str, options: &Options) -> (adaroll::reward::Found, adaroll::reward::Found) {
    std::thread::scope(|scope| {
        let judge = || {
            let read = Gold::new(reference, options.clone()).expect("it was a reference before");
            (read.judge(response), read.judge(&format!("\\boxed{{{response}}}")))
        };
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, judge).expect("a thread");
        thread.join().expect("a verdict")
    })
}

/// The fast tier draws the same cases every time; with PROPTEST_CASES in the environment there are as many as it says, others each time.
fn cases(few: u32) -> ProptestConfig {
    let given = std::env::var_os("PROPTEST_CASES").is_some();
    let default = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if given { default } else { ProptestConfig { cases: few, rng_seed: RngSeed::Fixed(7), ..default } }
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn another_spelling_is_as_right((value, one, other) in (value(), choices(), choices())) {
        let (reference, response) = (spelled(&value, &one), spelled(&value, &other));
        prop_assert_eq!(ruling(&reference, &response), Ruling::Correct, "{} for {}", response, reference);
        prop_assert_eq!(ruling(&response, &reference), Ruling::Correct, "{} for {}", reference, response);
    }

    #[test]
    fn another_value_is_never_right((value, how, one, other) in (value(), choices(), choices(), choices())) {
        let (reference, response) = (spelled(&value, &one), spelled(&changed(&value, &how), &other));
        prop_assert_ne!(ruling(&reference, &response), Ruling::Correct, "{} for {}", response, reference);
        prop_assert_ne!(ruling(&response, &reference), Ruling::Correct, "{} for {}", reference, response);
    }

    /// Of several answers none is right, whatever joins them.
    #[test]
    fn several_answers_are_not_one(
        (number, more, joint, one, other) in
            (number(), 1i64..9, prop::sample::select(vec![", ", " or ", " and ", "; ", " \\text{ or } ", " = ", " \\approx "]), choices(), choices())
    ) {
        let value = Value::Number(number);
        let (plain, also) = (spelled_number(number, &mut Choices { numbers: &one, at: 0 }), (number.0 + more * number.1, number.1));
        let also = spelled_number(also, &mut Choices { numbers: &other, at: 3 });
        let reference = spelled(&value, &other);
        for stuffed in [format!("{plain}{joint}{also}"), format!("{also}{joint}{plain}"), format!("{also}{joint}{plain}{joint}{also}")] {
            // An equation is computed on the way; it ends with the answer.
            if matches!(joint.trim(), "=" | "\\approx") && stuffed.ends_with(&plain) && !also.chars().all(|c| c.is_ascii_digit()) {
                continue;
            }
            // `a = b ≈ c` says b.
            if joint.contains("approx") && stuffed.starts_with(&plain) {
                continue;
            }
            prop_assert_ne!(ruling(&reference, &stuffed), Ruling::Correct, "{} for {}", stuffed, reference);
        }
    }

    #[test]
    fn no_text_breaks_the_judge((reference, response) in ("\\PC{0,60}", "(?s).{0,200}")) {
        judged_anyhow(&reference, &response)?;
    }

    #[test]
    fn no_broken_answer_breaks_the_judge((reference, response) in (prop_oneof![soup(12), broken()], prop_oneof![soup(30), broken()])) {
        judged_anyhow(&reference, &response)?;
    }
}

/// Texts that are to exhaust a judge; each must be too large or wrong. The work is counted, so the verdict says that it has ended.
#[test]
fn nothing_exhausts_the_judge() {
    let nested = |open: &str, inside: &str, close: &str, times: usize| format!("{}{inside}{}", open.repeat(times), close.repeat(times));
    let list = |count: usize, item: &dyn Fn(usize) -> String| (0..count).map(item).collect::<Vec<_>>().join(", ");
    let mut texts: Vec<String> = [
        "9^{9^{9^{9}}}",
        "9**9**9**9",
        "2^{30^{5}}",
        "10^{-10^{10}}",
        "10^{(5^{5^{5^{5^{5}}} \\cdot \\log_{10}(5)} - 4)}",
        "(10^{100})!",
        "((100!)!)!",
        "1000000!^{1000000!}",
        "\\binom{10^9}{5\\cdot 10^8}",
        "\\sum_{k=0}^{10000000} k!",
        "\\prod_{k=1}^{1000000} k",
        "\\sum_{i=1}^{100}\\sum_{j=1}^{100}\\sum_{k=1}^{100} ijk",
        "(x+1)^{100000}",
        "(a+b+c+d+e+f+g+h)^{-200}",
        "\\sin(10^{1000})",
        "e^{e^{e^{e^{e}}}}",
        "\\ln(10^{-400}) + 1e-400",
        "\\lfloor 10^{1000}\\pi\\rfloor",
        "\\sqrt[10^{100}]{2}",
        "1e1001",
        "1e999999999999999999999",
    ]
    .map(str::to_owned)
    .to_vec();
    let pairs = [
        ("(", ")"),
        ("[", "]"),
        ("\\{", "\\}"),
        ("{", "}"),
        ("\\frac{1}{", "}"),
        ("\\sqrt{", "}"),
        ("\\sqrt", ""),
        ("√", ""),
        ("\\sin(", ")"),
        ("\\sin ", ""),
        ("\\angle ", ""),
        ("\\frac", ""),
        ("\\log_", ""),
        ("2^{", "}"),
        ("2^", ""),
        ("|", "|"),
        ("\\text{a", "}"),
        ("\\mathrm{a\\", "}"),
        ("\\begin{pmatrix}", "\\end{pmatrix}"),
        ("f(", ")"),
        ("(1, ", ")"),
        ("\\{1, ", "\\}"),
        ("A\\cup ", ""),
        ("x\\in ", ""),
        ("1\\pm ", ""),
        ("1, ", ""),
        ("\\overline{", "}"),
        ("\\sum_{k=1}^{2}", ""),
        ("-", "x"),
        ("", "!"),
        ("", "'"),
        ("", "^"),
        ("", "_"),
        ("", "\\%"),
        ("", "\\begin{matrix}"),
        ("\\cup", ""),
        ("\\Rightarrow x", ""),
    ];
    for (open, close) in pairs {
        for times in [9, 99, 101, 500, 1000] {
            let text = nested(open, "3", close, times);
            // Round the answer itself brackets say nothing.
            texts.extend((text.len() < 8192).then_some(text));
        }
    }
    texts.extend([
        list(10_000, &|n| n.to_string()),
        list(200, &|n| format!("\\sqrt{{{n}}}")),
        list(199, &|n| format!("x = {n}")),
        list(199, &|n| format!("x > {n}")),
        list(199, &|n| format!("\\pm {n}")),
        format!("\\{{{}\\}}", list(199, &|n| format!("\\pm \\sqrt{{{n}}}"))),
        (0..300).map(|n| format!("[{n}, {n}.5]")).collect::<Vec<_>>().join("\\cup"),
        (2..300).map(|n| format!("\\sqrt{{{n}}}")).collect::<Vec<_>>().join("+"),
        (1..300).map(|n| format!("(x+{n})")).collect::<Vec<_>>().join(""),
        (1..200).map(|n| format!("\\frac{{1}}{{x+{n}}}")).collect::<Vec<_>>().join("+"),
        format!("\\begin{{pmatrix}}{}\\end{{pmatrix}}", "1 & 2 \\\\".repeat(150)),
        "7".repeat(1000),
        "7".repeat(1001),
        format!("0.{}", "3".repeat(999)),
        "7".repeat(9000),
    ]);
    let references = ["7", "x^2 + 7", "\\{1, 2\\}", "(1, 7)", "x = 7", "x > 7", "0.333", "7\\text{ cm}"];
    let judge = move || {
        let mut wrong = Vec::new();
        for reference in references {
            let reference = gold(reference);
            for text in &texts {
                let found = reference.judge(&format!("\\boxed{{{text}}}"));
                if reference.text() == "0.333" && text.starts_with("\\frac{1}") {
                    // Nine reciprocals of 3 are a third.
                    continue;
                }
                if !matches!(found.ruling, Ruling::Wrong | Ruling::Limit | Ruling::NoAnswer)
                    || found != reference.judge(&format!("\\boxed{{{text}}}"))
                {
                    wrong.push(format!("{}: {found:?}", text.chars().take(60).collect::<String>()));
                }
            }
        }
        wrong
    };
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(judge).unwrap();
    let wrong = thread.join().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A megabyte of what marks answers has a verdict too.
#[test]
fn long_responses_are_searched() {
    let parts = [
        "\\boxed{",
        "\\boxed{1}",
        "\\boxed{1} and ",
        "####",
        "#### 1\n",
        "<answer>",
        "</answer>",
        "<",
        "</",
        "<think>",
        "</think>",
        "◁",
        "$",
        "$1$ ",
        "\\(",
        "**",
        "The answer is ",
        "Answer: ",
        "A: ",
        "[",
        "{",
        "}",
        "\\",
        "答案",
        "é",
        "\u{301}",
        "1",
        "1 ",
        "<|im_end|>",
        "</s>",
        "assistant",
        "\n",
        "- 1\n",
    ];
    let reference = gold("42");
    let lenient = Gold::new("42", Options { lenient: true, ..Options::default() }).unwrap();
    for part in parts {
        let repeated = part.repeat(1_000_000 / part.len());
        for judge in [&reference, &lenient] {
            assert_ne!(judge.judge(&repeated).ruling, Ruling::Correct, "{part:?}");
            assert_ne!(judge.judge(&format!("{repeated} \\boxed{{43}}")).ruling, Ruling::Correct, "{part:?}");
        }
    }
}
