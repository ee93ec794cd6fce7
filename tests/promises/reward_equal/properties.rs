//! What holds of all expressions of some shape.

use adaroll::reward::math::equal::{Budget, equal, exact};
use adaroll::reward::math::expr::Expr;
use num_bigint::BigInt;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::infix::read;
use super::{rational, verdict};

/// A polynomial in x and y, with roots and functions where `depth` allows.
fn expressions(depth: u32, functions: bool) -> BoxedStrategy<String> {
    let leaf = prop_oneof![(-9i64..10).prop_map(|n| format!("({n})")), Just("x".to_owned()), Just("y".to_owned())];
    leaf.prop_recursive(depth, 24, 3, move |inner| {
        let pair = (inner.clone(), inner.clone());
        let polynomial = prop_oneof![
            pair.clone().prop_map(|(a, b)| format!("({a} + {b})")),
            pair.clone().prop_map(|(a, b)| format!("({a} - {b})")),
            pair.clone().prop_map(|(a, b)| format!("({a} * {b})")),
            (inner.clone(), 0..4u32).prop_map(|(a, n)| format!("({a})^{n}")),
        ];
        if !functions {
            return polynomial.boxed();
        }
        prop_oneof![
            polynomial,
            pair.prop_map(|(a, b)| format!("({a} / {b})")),
            (inner, prop::sample::select(vec!["sqrt", "sin", "cos", "arctan", "abs", "ln", "f"])).prop_map(|(a, f)| format!("{f}({a})")),
        ]
        .boxed()
    })
    .boxed()
}

/// The fast tier draws the same cases every time; with PROPTEST_CASES in the environment there are as many as it says, others each time.
fn cases(few: u32) -> ProptestConfig {
    let given = std::env::var_os("PROPTEST_CASES").is_some();
    let default = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if given { default } else { ProptestConfig { cases: few, rng_seed: RngSeed::Fixed(7), ..default } }
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn equality_is_reflexive_and_symmetric(left in expressions(4, true), right in expressions(4, true)) {
        prop_assert_ne!(verdict(&left, &format!("{left} + 0*x")), Ok(Some(false)));
        prop_assert_ne!(verdict(&left, &format!("1*({left})")), Ok(Some(false)));
        prop_assert_eq!(verdict(&left, &right), verdict(&right, &left));
    }

    #[test]
    fn expanded_products_are_equal(roots in prop::collection::vec(-20i64..20, 1..8)) {
        let mut coefficients = vec![BigInt::from(1)];
        for root in &roots {
            let mut next = vec![BigInt::ZERO; coefficients.len() + 1];
            for (power, coefficient) in coefficients.iter().enumerate() {
                next[power + 1] += coefficient;
                next[power] -= coefficient * root;
            }
            coefficients = next;
        }
        let product = roots.iter().map(|root| format!("(x - ({root}))")).collect::<Vec<_>>().join("*");
        let terms: Vec<String> = coefficients.iter().enumerate().map(|(power, coefficient)| format!("({coefficient})*x^{power}")).collect();
        let expanded = terms.join("+");
        prop_assert_eq!(verdict(&product, &expanded), Ok(Some(true)));
        prop_assert_eq!(verdict(&product, &format!("{expanded} + 1/1000000007")), Ok(Some(false)));
        // The same with what is no polynomial: only values tell.
        let (product, expanded) = (product.replace('x', "sqrt(x)"), expanded.replace('x', "sqrt(x)"));
        prop_assert_eq!(verdict(&format!("{product} + sqrt(2)*sqrt(3)"), &format!("{expanded} + sqrt(6)")), Ok(Some(true)));
        prop_assert_eq!(verdict(&format!("{product} + sqrt(2)*sqrt(3)"), &format!("{expanded} + sqrt(6) + 10^(-20)*y")), Ok(Some(false)));
    }

    #[test]
    fn polynomials_may_be_rearranged(a in expressions(3, false), b in expressions(3, false), c in expressions(3, true)) {
        for (left, right) in [
            (format!("({a} + {b})^2"), format!("({a})^2 + 2*({a})*({b}) + ({b})^2")),
            (format!("({a})^2 - ({b})^2"), format!("({a} + {b})*({a} - ({b}))")),
            (format!("({c})*({a} + {b})"), format!("({b})*({c}) + ({a})*({c})")),
            (format!("cos({c} - {a})"), format!("cos({c})*cos({a}) + sin({c})*sin({a})")),
        ] {
            prop_assert_ne!(verdict(&left, &right), Ok(Some(false)), "{} == {}", left, right);
            prop_assert_ne!(verdict(&left, &format!("{right} + 1/1000")), Ok(Some(true)), "{} == {}", left, right);
        }
    }

    #[test]
    fn exact_values_agree_with_computed_ones(p in 1i64..400, q in 1i64..400, r in -3i64..4, s in 1i64..4) {
        for text in [
            format!("({p}/{q})^{r} + sqrt({p}^2*{q}^2)"),
            format!("root({p}^{s}/{q}^{s}, {s})*{r}"),
            format!("floor({p}/{q}) + ceil({r}/{q}) + mod({p}, {q})"),
            format!("sum(k^{s}/{q}, k, {r}, 6) - binom({q}, {s})"),
            format!("log(2^{p}, 2^{q})"),
            format!("sin({p}*pi/6)^2 + cos({p}*pi/6)^2 + tan({q}*pi)"),
        ] {
            let expression = read(&text);
            let Ok(Some(value)) = exact(&expression, &mut Budget::new()) else { continue };
            // A root of two on both sides keeps the exact values from being compared.
            let side = |inner: Expr| Expr::Sum(vec![inner, read("sqrt(2)*sqrt(3)")]);
            let (left, right) = (side(expression), Expr::Sum(vec![Expr::Number(value.clone()), read("sqrt(6)")]));
            prop_assert_eq!(equal(&left, &right, &mut Budget::new()), Ok(Some(true)), "{}", text);
            let apart = Expr::Sum(vec![Expr::Number(value + rational(1, 1_000_000_007)), read("sqrt(6)")]);
            prop_assert_eq!(equal(&left, &apart, &mut Budget::new()), Ok(Some(false)), "{}", text);
        }
    }
}
