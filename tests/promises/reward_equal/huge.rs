//! Whatever is asked, the answer or a refusal comes after bounded work; which of the two, only the budget decides.

use adaroll::reward::math::equal::{Budget, equal, exact, order, proportional, within};
use adaroll::reward::math::expr::{Expr, TooLarge};

use super::infix::read;
use super::rational;

#[test]
fn huge_expressions_end() {
    let sum = vec!["1"; 4_000].join("+");
    let variables: Vec<String> = (0..2_000).map(|k| format!("x_{k}")).collect();
    let factors: Vec<String> = (0..200).map(|k| format!("(x+{k})")).collect();
    let sines: Vec<String> = (0..2_000).map(|k| format!("sin(x+{k})")).collect();
    let fraction = (0..190).fold("x".to_owned(), |inner, k| format!("{k}+1/({inner})"));
    let roots = (0..190).fold("2".to_owned(), |inner, k| format!("sqrt({k}+{inner})"));
    let tower = (0..190).fold("x".to_owned(), |inner, _| format!("2^({inner})"));
    let factorials = (0..300).map(|k| format!("fact({})", 999 - k)).collect::<Vec<_>>().join("+");
    let binomials = (0..300).map(|k| format!("binom(x, {})", 999 - k)).collect::<Vec<_>>().join("+");
    let primes = (2..600).map(|k| format!("sqrt({k})")).collect::<Vec<_>>().join("+");
    let nested = (0..8).fold("k".to_owned(), |inner, k| format!("sum({inner}, i_{k}, 1, 9)"));
    let long = format!("{}/{}", "7".repeat(2_400), "3".repeat(2_399));
    let longs = vec![long.as_str(); 100].join("+");
    let longs_apart = (1..200).map(|k| format!("1/{}{k}", "7".repeat(300))).collect::<Vec<_>>().join("+");
    let cases = [
        "9^(9^(9^9))",
        "2^(30^5)",
        "2^(4^(8^16))",
        "10^((5^(5^(5^(5^5)))*log(5, 10)) - 4)",
        "fact(10^100)",
        "fact(1000000)^fact(1000000)",
        "binom(10^9, 5*10^8)",
        "sum(fact(k), k, 1, 10^7)",
        "prod(k, k, 1, 10^6)",
        "sum(x^k, k, 1, 10^7)",
        "(x+1)^100000",
        "x^(10^30)",
        "sin(10^(10^10))",
        "e^(e^(e^(e^e)))",
        "sum(1/k, k, 1, 5000)",
        "sum(sum(sum(i*j*k, i, 1, 300), j, 1, 300), k, 1, 300)",
        "lcm(fact(999), 10^2000+1)",
        "(10^2000+1)^(1/2)",
        "mod(10^2000, 10^1000+7)",
        "fact(1000)",
        "binom(1000, 500)",
        "binom(x, 1000)",
        "(7/3)^3000 + (5/11)^2000",
        "log(10^2000, 10^1000)",
        "(1+10^(-30))^(10^30)",
        "f(f(f(f(x))))",
        &sum,
        &variables.join("+"),
        &variables.join("*"),
        &factors.join("*"),
        &sines.join("+"),
        &sines.join("*"),
        &fraction,
        &roots,
        &tower,
        &factorials,
        &binomials,
        &primes,
        &nested,
        &long,
        &longs,
        &longs_apart,
    ];
    for case in cases {
        let expression = read(case);
        for other in ["1", "x", "x+sin(y)", case] {
            for (left, right) in [(&expression, &read(other)), (&read(&format!("({other})+sqrt(2)")), &expression)] {
                let first = equal(left, right, &mut Budget::new());
                assert_eq!(first, equal(left, right, &mut Budget::new()));
                let _ = proportional(left, right, &mut Budget::new());
                let _ = order(left, right, &mut Budget::new());
            }
        }
        let _ = exact(&expression, &mut Budget::new());
        let _ = within(&expression, &rational(1, 2), &rational(1, 1000), &mut Budget::new());
    }
}

/// The work is shared: a budget that is spent refuses what a new one decides.
#[test]
fn a_budget_is_spent_once() {
    let (left, right) = (read("sin(x)^2 + cos(x)^2"), read("1"));
    let mut budget = Budget::new();
    let decided = (0..).take_while(|_| equal(&left, &right, &mut budget) == Ok(Some(true))).count();
    assert!((5..1_000).contains(&decided), "{decided}");
    assert!(equal(&left, &right, &mut budget).is_err());
}

/// A recursion that could overflow the stack is not begun.
#[test]
fn depth_is_bounded() {
    let expression = (0..400).fold(Expr::symbol("x"), |inner, _| Expr::Sum(vec![inner]));
    let refused = Err(TooLarge("too deep an expression"));
    assert_eq!(equal(&expression, &Expr::symbol("x"), &mut Budget::new()), refused);
    assert_eq!(proportional(&Expr::symbol("x"), &expression, &mut Budget::new()), refused);
    assert!(exact(&expression, &mut Budget::new()).is_err());
}
