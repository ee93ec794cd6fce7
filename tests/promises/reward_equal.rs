//! Two expressions are equal if they are the same mathematics, whatever they look like; and that is decided in bounded work.

mod huge;
mod infix;
mod properties;

use std::cmp::Ordering;

use adaroll::reward::math::equal::{Budget, equal, exact, has_variables, order, proportional, within};
use adaroll::reward::math::expr::TooLarge;
use infix::read;
use num_rational::BigRational;

/// Pairs, one a line, with `==` between them.
fn pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(|line| line.split_once("==").expect("a pair"))
}

fn verdict(left: &str, right: &str) -> Result<Option<bool>, TooLarge> {
    equal(&read(left), &read(right), &mut Budget::new())
}

fn all(text: &str, expected: Option<bool>) {
    let mut wrong = Vec::new();
    for (left, right) in pairs(text) {
        for (left, right) in [(left, right), (right, left)] {
            let found = verdict(left, right);
            if found != Ok(expected) {
                wrong.push(format!("{left} == {right}: {found:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_equal_is_seen() {
    all(
        "x^2 + 2*x + 1 == (x+1)^2
        (x^2 - 1)/(x - 1) == x + 1
        sin(x)^2 + cos(x)^2 == 1
        sin(2*x) == 2*sin(x)*cos(x)
        tan(y)^2 + 1 == sec(y)^2
        2^(n+1) == 2*2^n
        4^n == 2^(2*n)
        sqrt(2)*sqrt(3) == sqrt(6)
        1/sqrt(3) == sqrt(3)/3
        ln(2) == log(2, e)
        -2*(x^2+6)/(9*(x^2-2)*root((x^2-2)^2, 3)) == -8*x^2/(9*(x^2-2)^(5/3)) + 2/(3*(x^2-2)^(2/3))
        10^((-5+sqrt(13))/6) == 10^((sqrt(13)-5)/6)
        sqrt(3 + 2*sqrt(2)) == 1 + sqrt(2)
        e^(i*pi) == -1
        4*arctan(1) == pi
        binom(5, 2) == 10
        cos(pi/7)*cos(2*pi/7)*cos(4*pi/7) == -1/8
        ((1+sqrt(5))/2)^2 == (1+sqrt(5))/2 + 1
        2/(1+sqrt(5)) == (sqrt(5)-1)/2
        ((1+sqrt(5))/2)^10 - ((1-sqrt(5))/2)^10 == 55*sqrt(5)
        a*b*c == c*b*a
        a_n + 2*b_n == b_n*2 + a_n
        sqrt(1/n) == 1/sqrt(n)
        sqrt(a/b) == sqrt(a*b)/b
        sqrt(x^2*y) == x*sqrt(y)
        abs(x - y) == abs(y - x)
        sqrt((x-1)^2) == abs(x-1)
        x^(2/3) == root(x, 3)^2
        (-8)^(1/3) == -2
        (-8)^(2/3) == 4
        sqrt(-4) == 2*i
        (3+4*i)*(3-4*i) == 25
        1/i == -i
        ln(6) == ln(2) + ln(3)
        log(8, 4) == 3/2
        log(x, 2) == ln(x)/ln(2)
        root(7 + 5*sqrt(2), 3) == 1 + sqrt(2)
        f(1 + 1) == f(2)
        f(x^2 - 1) == f((x-1)*(x+1))
        f(sqrt(x^2 + 2*x + 1)) == f(x + 1)
        fact(n)/fact(n-2) == n*(n-1)
        fact(n+1) == (n+1)*fact(n)
        binom(n, 2) == n*(n-1)/2
        binom(n, k) == fact(n)/(fact(k)*fact(n-k))
        sum(k, k, 1, n) == n*(n+1)/2
        sum(k^2, k, 1, n) == sum(j^2, j, 1, n)
        sum(k^3, k, 1, 100) == 5050^2
        prod(k, k, 1, 6) == 720
        (-1)^n == cos(n*pi)
        (-1)^(2*n) == 1
        mod(17, 5) == 2
        mod(-1, 5) == 4
        floor(sqrt(50)) == 7
        floor(sqrt(2)^2) == 2
        max(sqrt(2), 1.4) == sqrt(2)
        gcd(12, 18) == 6
        sin(deg(30)) == 0.5
        cos(pi/12) == (sqrt(6)+sqrt(2))/4
        arcsin(x) + arccos(x) == pi/2
        arctan(2) + arctan(3) == 3*pi/4
        sinh(x) == (e^x - e^(-x))/2
        arsinh(x) == ln(x + sqrt(x^2+1))
        cosh(x)^2 - sinh(x)^2 == 1
        0.1 == 1/10
        oo == oo
        -oo == (-2)*oo
        3^10000 + 1 == 9^5000 + 1
        (x+1)^100000 == (x+1)^99999*(x+1)
        1/(1 - x) - 1/(1 + x) == 2*x/(1 - x^2)
        sqrt((x-5)*(x-7)) == sqrt(x-5)*sqrt(x-7)
        e^(2*ln(x)) == x^2
        x^x == e^(x*ln(x))
        2^1000*sqrt(2) == sqrt(2^2001)
        log(sqrt(2), 2) == 1/2",
        Some(true),
    );
}

#[test]
fn what_differs_is_seen() {
    all(
        "pi == 22/7
        pi == 355/113
        pi == 3.14159265358979
        sqrt(2) == 1.41421356
        e^(pi*sqrt(163)) == 262537412640768744
        10*x == 10*y
        3 + 4*i == 3 - 4*i
        x + 2*n + 1 == x + 1
        (x^3 - 1)/(x - 1) == x^2 + x
        1 - 1/e == 1 + 1/e
        sqrt(5) + sqrt(6) + sqrt(18) == sqrt(4) + sqrt(12) + sqrt(12)
        sqrt(10) + sqrt(11) == sqrt(5) + sqrt(18)
        sqrt(10^40 + 1) - 10^20 == 0
        sqrt(10^200 + 1) == 10^100
        sqrt(2) + 10^(-200) == sqrt(2)
        abs(x) == x
        abs(a - b) == a - b
        sqrt((x-1)^2) == x - 1
        sqrt(x^2 + 1) == x + 1
        f(x) == f(y)
        f(x) == g(x)
        f(x, y) == f(y, x)
        a_1 == a_2
        2^n == n^2
        (-1)^n == 1
        floor(x) == x
        floor(n/2) == n/2
        mod(n, 2) == mod(n, 3)
        arcsin(sin(x)) == x
        ln(x + y) == ln(x) + ln(y)
        sqrt(x + y) == sqrt(x) + sqrt(y)
        (x+1)^100000 == 1
        10^100 == 10^100 + 1
        3^10000 == 9^5000 + 1
        oo == 5
        oo == -oo
        x == 2305843009213693951*x
        sum(k, k, 1, n) == n^2
        cos(x) == cos(2*x)
        e == 2.718281828459045
        i == 1
        i^2 == 1
        x == x^2
        (-8)^(1/3) == 2
        sin(10^20) == sin(10^20 + 1)",
        Some(false),
    );
}

/// An approximation to which a constant differs only far behind the point is not the constant.
#[test]
fn near_coincidences_differ() {
    all(
        "pi == 103993/33102
        pi == 2646693125139304345/842468587426513207
        ln(640320^3 + 744)/sqrt(163) == pi
        10^(1/4)*e^(1/2) == 2.931872
        sqrt(2) == 886731088897/627013566048
        (1+sqrt(5))/2 == 12586269025/7778742049
        22*pi^4 == 2143
        e^pi - pi == 20
        sin(11) == -1
        e^(pi*sqrt(652)) == (640320^3 + 744)^2 - 2*196884
        sqrt(1000001) + sqrt(1000025) + sqrt(1000031) == sqrt(1000000) + sqrt(1000028) + sqrt(1000029)",
        Some(false),
    );
}

#[test]
fn what_cannot_be_said_is_not_said() {
    all(
        "1/0 == 2/0
        1/(x - x) == 3
        1/(sqrt(2)^2 - 2) == 1
        oo - oo == 0
        sum(1/k^2, k, 1, oo) == pi^2/6
        arctan(oo) == pi/2",
        None,
    );
}

fn rational(numerator: i64, denominator: i64) -> BigRational {
    BigRational::new(numerator.into(), denominator.into())
}

#[test]
fn exact_values_are_found() {
    for (text, value) in [
        ("2^10", rational(1024, 1)),
        ("fact(5)", rational(120, 1)),
        ("dfact(7)", rational(105, 1)),
        ("binom(10, 3)", rational(120, 1)),
        ("binom(1/2, 2)", rational(-1, 8)),
        ("sqrt(49/4)", rational(7, 2)),
        ("root(27, 3)", rational(3, 1)),
        ("root(-27, 3)", rational(-3, 1)),
        ("(4/9)^(-3/2)", rational(27, 8)),
        ("abs(-3)", rational(3, 1)),
        ("floor(3.7)", rational(3, 1)),
        ("ceil(-3.7)", rational(-3, 1)),
        ("gcd(12, 18, 27)", rational(3, 1)),
        ("lcm(4, 6)", rational(12, 1)),
        ("mod(-7, 3)", rational(2, 1)),
        ("log(8, 2)", rational(3, 1)),
        ("log(1/9, 27)", rational(-2, 3)),
        ("ln(e^3)", rational(3, 1)),
        ("sin(pi/6)", rational(1, 2)),
        ("cos(2*pi/3)", rational(-1, 2)),
        ("tan(deg(45))", rational(1, 1)),
        ("sec(pi/3)", rational(2, 1)),
        ("csc(-pi/2)", rational(-1, 1)),
        ("cot(3*pi/4)", rational(-1, 1)),
        ("4 + 4/9", rational(40, 9)),
        ("sum(k^2, k, 1, 10)", rational(385, 1)),
        ("prod((k+1)/k, k, 1, 20)", rational(21, 1)),
        ("sum(k, k, 1, 0)", rational(0, 1)),
        ("max(1, 5/2, 2)", rational(5, 2)),
        ("0.125*8", rational(1, 1)),
        ("arcsin(0)", rational(0, 1)),
    ] {
        assert_eq!(exact(&read(text), &mut Budget::new()), Ok(Some(value)), "{text}");
    }
    for text in ["pi", "sqrt(2)", "x", "1/0", "(-4)^(1/2)", "sin(1)", "tan(pi/2)", "ln(2)", "f(2)", "fact(1/2)", "oo"] {
        assert_eq!(exact(&read(text), &mut Budget::new()), Ok(None), "{text}");
    }
    for text in ["10^10000", "fact(10^6)", "2^(10^30)"] {
        assert!(exact(&read(text), &mut Budget::new()).is_err(), "{text}");
    }
}

#[test]
fn multiples_are_seen() {
    let said = |left: &str, right: &str| proportional(&read(left), &read(right), &mut Budget::new());
    for (left, right, expected) in [
        ("2*x + 2*y", "x + y", true),
        ("x - y", "y - x", true),
        ("x^2 + y^2 - 4", "x^2/4 + y^2/4 - 1", true),
        ("sqrt(2)*x + 2", "x + sqrt(2)", true),
        ("sin(2*x)", "sin(x)*cos(x)", true),
        ("x*pi", "x", true),
        ("f(x)*3", "f(x)", true),
        ("x + y", "x - y", false),
        ("x^2", "x", false),
        ("x", "0", false),
        ("x - x", "sin(x)^2 + cos(x)^2 - 1", true),
        ("sin(x)", "cos(x)", false),
        ("sqrt(x)", "x", false),
        ("5", "sqrt(2)", true),
        ("sqrt(2)^2 - 2", "3", false),
    ] {
        assert_eq!(said(left, right), Ok(Some(expected)), "{left}, {right}");
        assert_eq!(said(right, left), Ok(Some(expected)), "{right}, {left}");
    }
}

#[test]
fn constants_are_ordered() {
    let said = |left: &str, right: &str| order(&read(left), &read(right), &mut Budget::new()).expect("small");
    for (left, right, expected) in [
        ("1", "2", Ordering::Less),
        ("sqrt(2)", "1.4142", Ordering::Greater),
        ("pi", "355/113", Ordering::Less),
        ("sqrt(2)*sqrt(3)", "sqrt(6)", Ordering::Equal),
        ("-oo", "-10^50", Ordering::Less),
        ("oo", "e^100", Ordering::Greater),
        ("oo", "oo", Ordering::Equal),
        ("-oo", "oo", Ordering::Less),
        ("e^(pi*sqrt(163))", "262537412640768744", Ordering::Less),
    ] {
        assert_eq!(said(left, right), Some(expected), "{left}, {right}");
        assert_eq!(said(right, left), Some(expected.reverse()), "{right}, {left}");
    }
    for (left, right) in [("x", "1"), ("i", "1"), ("f(1)", "2"), ("oo", "i"), ("1/0", "1"), ("oo", "x")] {
        assert_eq!(said(left, right), None, "{left}, {right}");
    }
}

#[test]
fn tolerances_are_kept() {
    let said = |text: &str, value: BigRational, tolerance: BigRational| within(&read(text), &value, &tolerance, &mut Budget::new());
    assert_eq!(said("pi", rational(314, 100), rational(5, 1000)), Ok(Some(true)));
    assert_eq!(said("pi", rational(314, 100), rational(1, 1000)), Ok(Some(false)));
    assert_eq!(said("3.145", rational(314, 100), rational(5, 1000)), Ok(Some(true)));
    assert_eq!(said("sqrt(2)*sqrt(2)", rational(199, 100), rational(1, 100)), Ok(Some(true)));
    assert_eq!(said("e^(i*pi)", rational(-1, 1), rational(0, 1)), Ok(Some(true)));
    assert_eq!(said("2*i", rational(2, 1), rational(1, 1)), Ok(None));
    assert_eq!(said("x", rational(2, 1), rational(1, 1)), Ok(None));
}

#[test]
fn variables_are_told_from_indexes() {
    assert!(has_variables(&read("x + 1")) && has_variables(&read("f(2)")) && has_variables(&read("sum(k, k, 1, n)")));
    assert!(!has_variables(&read("sum(k, k, 1, 10) + sqrt(2)*pi")));
}
