//! Promise: the answer of a response is found where the response gives it, and nowhere else.

use adaroll::reward::math::extract::{Extraction, boxes, extract, gold, gold_in_text};
use adaroll::reward::math::{Mark, Options};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

fn lenient() -> Options {
    Options { lenient: true, ..Options::default() }
}

/// Rule and text of the answer, or why there is none.
fn found_with(response: &str, options: &Options) -> (String, String) {
    match extract(response, options) {
        Extraction::Found(found) => (found.rule.to_owned(), found.text),
        Extraction::None(why) => ("none".to_owned(), why.to_owned()),
        Extraction::Limit(what) => ("limit".to_owned(), what.to_owned()),
    }
}

#[track_caller]
fn check(options: &Options, rows: &[(&str, &str, &str)]) {
    for (response, rule, text) in rows {
        assert_eq!(found_with(response, options), ((*rule).to_owned(), (*text).to_owned()), "of {response:?}");
    }
}

#[test]
fn the_last_box_is_the_answer() {
    check(
        &Options::default(),
        &[
            (r"so it is \boxed{42}.", "boxed", "42"),
            (r"first \boxed{41}, which is wrong. Then \boxed{42}", "boxed", "42"),
            (r"\boxed{1} then \boxed{2}", "boxed", "2"),
            (r"\boxed{42}\boxed{43}", "boxed", "43"),
            (r"\boxed{35 cm} ++++++ \boxed{4}", "boxed", "4"),
            (r"\boxed{1} no no no no no \boxed{2}", "boxed", "2"),
            (r"the area is \boxed{25}.\] The area of the triangle is \boxed{26}.", "boxed", "26"),
            (r"$\boxed{3x}$ and then $\boxed{4x}$", "boxed", "4x"),
            (r"$a=\boxed{3}$ and $b=\boxed{4}$, so $a+b=\boxed{7}$", "boxed", "7"),
            (r"the answer is \fbox{\frac{1}{2}}", "boxed", r"\frac{1}{2}"),
            (r"\boxed{\boxed{42}}", "boxed", "42"),
            (r"\boxed{x = \fbox{42}}", "boxed", "42"),
            ("\\boxed\n{ 42 }", "boxed", "42"),
            (r"\boxed {42}", "boxed", "42"),
            (r"\boxed 7", "boxed", "7"),
            (r"$x = \boxed 42$ and so on", "boxed", "42"),
            (r"\boxed{\{1, 2\} \cup [3, 4)}", "boxed", r"\{1, 2\} \cup [3, 4)"),
            (r"\boxed{\left\{ \frac{1}{2} \right.}", "boxed", r"\left\{ \frac{1}{2} \right."),
            ("\\boxed{\n\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}\n}.\n\\end{align*}", "boxed", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"),
            (r"\boxed{$5!$}", "boxed", "5!"),
            (r"\boxed{7!!}", "boxed", "7!!"),
            (r"\boxed{z^*}", "boxed", "z^*"),
            (r"\boxed{\text{Evelyn}}.", "boxed", r"\text{Evelyn}"),
            (r"\boxed{0.333...}", "boxed", "0.333..."),
            (r"\boxed{32,\! 349}", "boxed", r"32,\! 349"),
            (r"Put it in \boxed and be done. \boxed{8} is it", "boxed", "8"),
            (r"\boxed{8} is what I put in \boxed form", "boxed", "8"),
            (r"\boxed{4} fills it: -3 = -7 + \boxed{\phantom{2}}", "boxed", "4"),
        ],
    );
}

#[test]
fn an_empty_or_unclosed_box_is_no_answer_whatever_stands_before_it() {
    check(
        &Options::default(),
        &[
            (r"\boxed{}", "none", "an empty box"),
            (r"\boxed{42} no, \boxed{ }", "none", "an empty box"),
            (r"\boxed{42} no, \boxed{\ }", "none", "an empty box"),
            (r"\boxed{?}", "none", "an empty box"),
            (r"\boxed{42} or rather \boxed{4", "none", "an unclosed box"),
            (r"\boxed{42} or rather \boxed", "none", "an unclosed box"),
            (r"start \boxed{never closes", "none", "an unclosed box"),
            (r"The answer is 42. \boxed{\frac{1}{2", "none", "an unclosed box"),
        ],
    );
}

#[test]
fn joined_boxes_are_one_list() {
    check(
        &Options::default(),
        &[
            (r"\boxed{1} and \boxed{2} and \boxed{3}", "boxed", "1, 2, 3"),
            (r"\boxed{4}, \boxed{5}", "boxed", "4, 5"),
            (r"\boxed{1}, \boxed{2}, and \boxed{3}.", "boxed", "1, 2, 3"),
            (r"$$\boxed{(2, 2)} \quad \text{and} \quad \boxed{(6, 2)}$$", "boxed", "(2, 2), (6, 2)"),
            (r"\boxed{k = 45} \quad \text{and} \quad \boxed{n = 2}", "boxed", "k = 45, n = 2"),
            (r"$$\boxed{(3, 3)} \text{ for part (a) and } \boxed{(1, 1)}$$", "boxed", "(3, 3), (1, 1)"),
            (r"\($y_1 = \boxed{x + 5} \) and \( y_2 = \boxed{3x} \)", "boxed", "x + 5, 3x"),
            (r"$y_{1} = \boxed{x}$ and $y_{2} = \boxed{3x}$", "boxed", "x, 3x"),
            (r"\boxed{1} papers and \boxed{2} bins", "boxed", "1, 2"),
            ("\\[ \\boxed{-2} \\]\nand\n\\[ \\boxed{1} \\]", "boxed", "-2, 1"),
            // A choice between two is no answer to either.
            (r"\boxed{41} or \boxed{42}", "boxed", "41, 42"),
        ],
    );
}

#[test]
fn hashes_and_tags_mark_an_answer_and_the_last_mark_wins() {
    check(
        &Options::default(),
        &[
            ("2+40=42\n#### 42\nas was shown.", "hashes", "42"),
            ("#### 42 apples", "hashes", "42 apples"),
            ("####: 55", "hashes", "55"),
            ("#### $\\frac{1}{2}$.", "hashes", r"\frac{1}{2}"),
            ("**#### 42**", "hashes", "42"),
            ("#### 42 ####", "hashes", "42"),
            ("The answer is #### 42", "hashes", "42"),
            ("Example: #### 12\nNow mine.\n#### 18", "hashes", "18"),
            ("#### The answer is: 42", "hashes", "42"),
            ("#### 42<|eot_id|>", "hashes", "42"),
            ("#### 41\n####", "none", "an empty answer"),
            // A heading is none.
            ("\\boxed{72}\n\n#### Verification\nIt fits.", "boxed", "72"),
            ("#### Step 1\nwe get \\boxed{72}", "boxed", "72"),
            ("##### 5\nThe answer is 6.", "phrase", "6"),
            (r"#### 41, no: \boxed{42}", "boxed", "42"),
            ("\\boxed{41}\n#### 42", "hashes", "42"),
            ("<answer>42</answer>", "answer_tag", "42"),
            ("<answer>\n2x + 3\n</answer> done", "answer_tag", "2x + 3"),
            ("<Answer> 42 </Answer>", "answer_tag", "42"),
            (r"<answer>So it is \boxed{42}</answer>", "boxed", "42"),
            ("<answer>The answer is 42.</answer>", "answer_tag", "42"),
            ("<answer>#### 42</answer>", "hashes", "42"),
            (r"\boxed{41} <answer>42</answer>", "answer_tag", "42"),
            ("<answer>41</answer><answer>42</answer>", "answer_tag", "42"),
            ("<answer></answer>", "none", "an empty answer"),
            (r"\boxed{42} <answer> </answer>", "none", "an empty answer"),
            ("<answer>42", "none", "an unclosed answer tag"),
            ("<answer>A or B or C</answer>", "answer_tag", "A or B or C"),
        ],
    );
}

#[test]
fn thoughts_and_tokens_are_no_part_of_the_response() {
    check(
        &Options::default(),
        &[
            (r"<think>\boxed{41}</think> \boxed{42}", "boxed", "42"),
            (r"<think>\boxed{42}</think> I am not sure", "whole", "I am not sure"),
            (r"reasoning</think> \boxed{42}", "boxed", "42"),
            (r"<think>a</think> b <think>c</think> \boxed{42}", "boxed", "42"),
            ("<think>x</think><answer>42</answer><|im_end|>", "answer_tag", "42"),
            (r"<reasoning>\boxed{1}</reasoning> \boxed{2}", "boxed", "2"),
            (r"<think> \boxed{42} and no end", "none", "an unclosed think"),
            (r"<think>a</think> <think>\boxed{42}", "none", "an unclosed think"),
            ("<think>a</think>", "none", "an empty response"),
            ("", "none", "an empty response"),
            ("The answer is 42<|eot_id|>", "phrase", "42"),
            ("42</s>", "whole", "42"),
            ("42 <|im_end|>\n<|endoftext|><|endoftext|>", "whole", "42"),
            ("The answer is $42$. <|im_start|>user", "phrase", "42"),
            ("42<|eot_id|><|start_header_id|>user<|end_header_id|>", "whole", "42"),
            ("42<end_of_turn>\n<start_of_turn>user\n", "whole", "42"),
            ("42[EOS]", "whole", "42"),
        ],
    );
}

#[test]
fn phrases_mark_an_answer_where_nothing_else_does() {
    check(
        &Options::default(),
        &[
            ("The answer is 4", "phrase", "4"),
            ("the answer is: 4.", "phrase", "4"),
            ("The answer is: **42**", "phrase", "42"),
            ("**Answer:** 42", "phrase", "42"),
            (r"**Answer: \$18 per day.**", "phrase", r"\$18 per day"),
            ("**Answer**: 42", "phrase", "42"),
            ("Answer: 42\n\nExplanation: 6 * 7 = 42, and 1 + 1 = 2.", "phrase", "42"),
            ("Answer:\n\n42", "phrase", "42"),
            ("### Final Answer\n\n42\n", "phrase", "42"),
            ("**Final Answer**\n\n\\[ x = 42 \\]\n", "phrase", "x = 42"),
            ("The answer is\n$$\n42\n$$\nas wanted.", "phrase", "42"),
            ("Final Answer: The final answer is $42$. I hope it is correct.", "phrase", "42"),
            ("Final Answer: The final answer is 12,000,023. I hope it is correct.", "phrase", "12,000,023"),
            ("Final Answer: The largest value of $f(x)$ is 19.", "phrase", "19"),
            ("Answer: 41 was a wrong guess.\nAnswer: 42", "phrase", "42"),
            ("The answer is 41. No, the answer is 42.", "phrase", "42"),
            ("I tried 42 values. The answer is 7.", "phrase", "7"),
            ("12 - see problem statement; the answer is 13", "phrase", "13"),
            ("The answer is 42. The answer is correct.", "phrase", "42"),
            ("The answer is 4 4/9.", "phrase", "4 4/9"),
            ("The answer is 90 degrees.", "phrase", "90 degrees"),
            ("The answer is 3.14. Done", "phrase", "3.14"),
            ("The answer is '42'.", "phrase", "42"),
            ("The answer is \"3.14\"", "phrase", "3.14"),
            ("The answer is `42`", "phrase", "42"),
            ("The answer is 5!", "phrase", "5!"),
            ("The answer is 42! That was easy.", "phrase", "42"),
            ("The answer is 42!!!", "phrase", "42"),
            ("The answer is !!!invalid!!!", "phrase", "!!!invalid!!!"),
            ("the answer is 2x+3 because the slope is 2", "phrase", "2x+3"),
            ("the answer is 7, so there are 3 left", "phrase", "7"),
            ("the answer is 7, which is prime.", "phrase", "7"),
            ("The answer to the question is 7.", "phrase", "7"),
            ("The correct answer is therefore (B).", "phrase", "(B)"),
            ("The answers are $x = 3$ and $x = 5$.", "phrase", "x = 3, x = 5"),
            ("The answer is $2$ hours.", "phrase", "2 hours"),
            (r"The answer is $\frac{1}{2}$%.", "phrase", r"\frac{1}{2}%"),
            ("The answer is $x$ = 5.", "phrase", "x = 5"),
            ("The answer is $18 per day, and they cost $2 each.", "phrase", "$18 per day, and they cost $2 each"),
            (r"\[ \text{Answer: } 42 \]", "phrase", "42"),
            ("**Final Answer:** The farmer has **12** cows.", "phrase", "12"),
            ("The answers are:\n1. $x = 1$\n2. $x = 2$\n\nThat is all.", "phrase", "x = 1, x = 2"),
            ("The answer is:\n- 42\n", "phrase", "42"),
            ("The answer:\n```\n42\n```", "phrase", "42"),
            ("So the answer's 42.", "phrase", "42"),
            ("The answer is 5 and the answer is in the set.", "phrase", "5"),
            ("so she makes 13 * 2 = $26\nA: 26", "phrase", "26"),
            ("A: -1.8 billion", "phrase", "-1.8 billion"),
            ("A: 7/14", "phrase", "7/14"),
            ("A: 10+John's age", "phrase", "10+John's age"),
            ("The answer is 41.\nAnswer:", "none", "an empty answer"),
        ],
    );
}

#[test]
fn phrases_of_other_languages_count() {
    check(
        &Options::default(),
        &[
            ("所以答案是42", "phrase", "42"),
            ("答案：42。", "phrase", "42"),
            ("最终答案为 $42$。", "phrase", "42"),
            ("因此，答案是42，因为6乘7等于42。", "phrase", "42"),
            ("答えは42です。", "phrase", "42"),
            ("정답은 42입니다.", "phrase", "42"),
            ("Ответ: 42", "phrase", "42"),
            ("Ответ — 42.", "phrase", "42"),
            ("La respuesta es 42.", "phrase", "42"),
            ("**Respuesta:** 42", "phrase", "42"),
            ("La respuesta final es $42$.", "phrase", "42"),
            ("La réponse est 42.", "phrase", "42"),
            ("Réponse : 42", "phrase", "42"),
            ("Die Antwort ist 42.", "phrase", "42"),
            ("Die Antwort lautet: 42", "phrase", "42"),
            ("Antwort: **42**", "phrase", "42"),
            ("Daher ist die Antwort 42.", "phrase", "42"),
            ("Resposta: 42", "phrase", "42"),
            ("A resposta é 42.", "phrase", "42"),
            ("La risposta è 42.", "phrase", "42"),
            ("Risposta: 42", "phrase", "42"),
            ("الجواب هو 42", "phrase", "42"),
            ("उत्तर 42 है।", "phrase", "42"),
            ("উত্তর হল 42।", "phrase", "42"),
            ("คำตอบคือ 42", "phrase", "42"),
            ("సమాధానం 42.", "phrase", "42"),
            ("Jibu ni 42.", "phrase", "42"),
        ],
    );
}

#[test]
fn bold_at_the_end_and_a_bare_answer_count() {
    check(
        &Options::default(),
        &[
            ("64 + 67 = **131**", "bold", "131"),
            ("It is easy.\nSo the total is **$18**.", "bold", "$18"),
            ("So **the total is 42**.", "bold", "42"),
            ("2**30**5", "whole", "2**30**5"),
            ("42", "whole", "42"),
            ("$5.00", "whole", "$5.00"),
            ("1 000 4/9", "whole", "1 000 4/9"),
            ("x = 4", "whole", "x = 4"),
            ("$x < 3$", "whole", "x < 3"),
            ("$28$ %", "whole", "28 %"),
            ("\\[\n\\frac{3}{4}\n\\]", "whole", r"\frac{3}{4}"),
            ("The total is $29,000.", "whole", "$29,000"),
            ("I don't know.", "whole", "I don't know"),
            ("11\n5/6", "none", "no mark"),
            ("We add.\n\nThen 5 + 5 = 10 is left.", "none", "no mark"),
        ],
    );
    let long = "word ".repeat(100);
    assert_eq!(found_with(&long, &Options::default()).0, "none");
}

#[test]
fn a_lenient_search_takes_the_last_formula_or_number() {
    check(
        &lenient(),
        &[
            ("We add.\n\nThen 5 + 5 = 10 is left.", "last_number", "5 + 5 = 10"),
            ("the total cost of the delivery order is $29.00.", "last_number", "$29.00"),
            ("the number is not 10 which is 1,000.99€", "last_number", "1,000.99€"),
            ("not it's not 10 it's 1,000.99m²", "last_number", "1,000.99m²"),
            ("With $x = 2$ the error increases by 100%.", "last_number", "100%"),
            ("The domain of $f(x)$ holds at most 19.", "last_number", "19"),
            ("Therefore $x > 5$ is the solution.", "last_formula", "x > 5"),
            ("Therefore x > 5 is the solution.", "last_number", "x > 5"),
            ("We have\n\\[ x = 5 \\]\nas wanted.", "last_formula", "x = 5"),
            ("Then \\begin{align*} x &= 1 + 1 \\\\ &= 2. \\end{align*}", "last_formula", "2"),
            ("It costs $5 and then $6 more", "last_number", "$6 more"),
            ("Sum: 11\n5/6", "last_number", "5/6"),
            ("Could be 3, 5 or 7", "last_number", "3, 5, 7"),
            ("In 2020, 5 people came", "last_number", "5"),
            ("the cars were built by COVID-19 and AZYUK2A on the 5th", "whole", "the cars were built by COVID-19 and AZYUK2A on the 5th"),
            ("Final Answer: Jane started 3 hours ago.", "phrase", "3"),
            ("The trains take 2 hours.", "last_number", "2 hours"),
            ("4 4/0", "whole", "4 4/0"),
            ("Nothing here.", "whole", "Nothing here"),
        ],
    );
    let Extraction::Found(found) = extract("42 it was, I think 43", &lenient()) else { panic!("no answer") };
    assert_eq!(found.rule, "whole");
    assert_eq!(found.otherwise.unwrap().text, "43");
    let strict = extract("42 it was, I think 43", &Options::default());
    assert!(matches!(strict, Extraction::Found(found) if found.otherwise.is_none()));
}

#[test]
fn marks_that_are_not_asked_for_do_not_count() {
    let only = |marks: &[Mark]| Options { marks: marks.to_vec(), ..Options::default() };
    check(
        &only(&[Mark::Hashes]),
        &[
            ("The answer is 42", "none", "no mark"),
            (r"\boxed{42}", "none", "no mark"),
            ("42", "none", "no mark"),
            ("#### 42", "hashes", "42"),
        ],
    );
    check(&only(&[Mark::Phrase]), &[(r"Answer: \boxed{43}", "phrase", "43")]);
    let mut geometry = Options::default();
    geometry.marks.push(Mark::Brackets);
    check(
        &geometry,
        &[
            ("First try [30], second try [45].", "brackets", "45"),
            (r"[$\sqrt{3^2 + 4^2}$] = [5]", "brackets", "5"),
            ("The answer is 90 degrees.", "phrase", "90 degrees"),
            (r"\boxed{[1, 2)}", "boxed", "[1, 2)"),
            (r"[7] and [a link](x) and \[ x \]", "brackets", "7"),
        ],
    );
}

#[test]
fn line_breaks_within_a_formula_can_be_refused() {
    let strict = Options { line_breaks: false, ..lenient() };
    check(
        &strict,
        &[
            ("Answer $ \n 9 \n $", "none", "an empty answer"),
            ("so it is $\n9\n$", "none", "no mark"),
            ("$\n9\n$", "none", "no mark"),
            ("Answer $$ \n 9 \n $$", "phrase", "9"),
            ("Answer $ 9 $", "phrase", "9"),
        ],
    );
    check(&lenient(), &[("so it is $\n9\n$", "last_formula", "9"), ("Answer \\( \n 9 \n \\)", "phrase", "9")]);
}

#[test]
fn a_reference_is_an_answer_or_a_solution() {
    for (text, expected) in [
        (" 42 ", "42"),
        ("$42$", "42"),
        ("$$ x $$", "x"),
        (r"\( x \)", "x"),
        (r"\[ x \]", "x"),
        ("$125$ miles", "$125$ miles"),
        ("$1$ or $2$", "$1$ or $2$"),
        (r"\$18", r"\$18"),
        (r"so $x = \boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (r"\boxed{1} papers and \boxed{2} bins", "1, 2"),
        ("6 * 12 = 72\n#### 72", "72"),
        (r"\boxed{a \text{ and } b", r"a \text{ and } b"),
        (r"\boxed{}", ""),
        ("", ""),
    ] {
        assert_eq!(gold(text), expected, "of {text:?}");
    }
    for (text, expected) in [
        ("answer is 0.6666667", Some("0.6666667")),
        ("Note: $28$. Final Answer: The final answer is $28 \\%$. I hope it is correct. Note: that was it", Some("28 \\%")),
        ("$(3,1)$", Some("(3,1)")),
        (r"$\sqrt[3]{x}$", Some(r"\sqrt[3]{x}")),
        ("See the figure.", Some("See the figure.")),
        ("", None),
    ] {
        assert_eq!(gold_in_text(text, &Options::default()).as_deref(), expected, "of {text:?}");
    }
    assert_eq!(gold_in_text("that leaves 5 apples on the table", &lenient()).as_deref(), Some("5"));
}

#[test]
fn boxes_are_given_the_last_one_first() {
    let text = r"\boxed{A} then \fbox{B}, \boxed{} and \boxed{C";
    assert_eq!(boxes(text).collect::<Vec<_>>(), [(25, ""), (15, "B"), (0, "A")]);
}

#[test]
fn an_answer_that_is_too_long_is_a_limit() {
    let what = ("limit".to_owned(), "answer longer than 8192 bytes".to_owned());
    let long = "1+".repeat(5000);
    for response in
        [format!("\\boxed{{{long}1}}"), format!("#### {long}1"), format!("<answer>{long}1</answer>"), format!("Answer: {long}1")]
    {
        assert_eq!(found_with(&response, &Options::default()), what);
    }
    assert_eq!(found_with(&format!("\\boxed{{{}}}", "1".repeat(8192)), &Options::default()).0, "boxed");
}

/// What responses are made of.
fn piece() -> impl Strategy<Value = String> {
    const PIECES: [&str; 60] = [
        "\\boxed{",
        "\\boxed",
        "\\fbox{",
        "}",
        "{",
        "\\}",
        "\\",
        "####",
        "# ",
        "\n",
        "\n\n",
        " ",
        "<answer>",
        "</answer>",
        "<think>",
        "</think>",
        "The answer is ",
        "Answer:",
        "A:",
        "B:",
        "答案",
        "是",
        "答えは",
        "Ответ",
        ":",
        "**",
        "*",
        "$",
        "$$",
        "\\(",
        "\\)",
        "\\[",
        "\\]",
        "\\$",
        "[",
        "]",
        "42",
        "1,000",
        ".",
        "!",
        " and ",
        " or ",
        ", ",
        "x = ",
        "\\text{ and }",
        "\\quad ",
        "\\phantom{",
        "<|im_end|>",
        "<|im_start|>",
        "user",
        "</s>",
        " is ",
        "'",
        "\"",
        "°",
        "m²",
        "\\begin{align}",
        "\\end{align}",
        " because ",
        "é",
    ];
    prop_oneof![4 => proptest::sample::select(PIECES.to_vec()).prop_map(str::to_owned), 1 => ".{0,4}"]
}

/// The fast tier draws the same cases every time; with PROPTEST_CASES in the environment there are as many as it says, others each time.
fn cases(few: u32) -> ProptestConfig {
    let given = std::env::var_os("PROPTEST_CASES").is_some();
    let default = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if given { default } else { ProptestConfig { cases: few, rng_seed: RngSeed::Fixed(7), ..default } }
}

proptest! {
    #![proptest_config(cases(4000))]

    #[test]
    fn any_text_is_searched_without_a_panic(pieces in proptest::collection::vec(piece(), 0..24), lenient: bool, line_breaks: bool, brackets: bool) {
        let text = pieces.concat();
        let mut options = Options { lenient, line_breaks, ..Options::default() };
        if brackets {
            options.marks.push(Mark::Brackets);
        }
        if let Extraction::Found(found) = extract(&text, &options) {
            prop_assert!(!found.text.trim().is_empty());
            prop_assert_eq!(found.text.trim(), &found.text);
            prop_assert!(lenient || found.otherwise.is_none());
        }
        let _ = (gold(&text), gold_in_text(&text, &options), boxes(&text).count());
    }

    #[test]
    fn a_box_behind_any_text_is_the_answer(pieces in proptest::collection::vec(piece(), 0..24), number in 0u32..1000) {
        let before = pieces.concat();
        let text = format!("{before}. So it is now\n</think> then \\boxed{{{number}}}.");
        prop_assert_eq!(found_with(&text, &Options::default()), ("boxed".to_owned(), number.to_string()));
    }

    #[test]
    fn what_was_found_is_found_again_as_the_whole_answer(number in -100_000i64..100_000) {
        for text in [format!("The answer is {number}."), format!("#### {number}"), format!("x\n\nA: {number}"), format!("so **{number}**"), format!("${number}$")] {
            prop_assert_eq!(found_with(&text, &Options::default()).1, number.to_string());
        }
    }
}
