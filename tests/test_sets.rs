//! `mt eval` on test sets in XML and SGML, beside the same text in plain files.

mod common;

use common::project::{Project, fails, sets, stderr, stdout, succeeds};
use serde_json::Value;

const SOURCES: [&str; 4] = ["A cat & a dog sleep .", "Two <b> dogs run .", "A house stands here .", "It rains today ."];
const FIRST: [&str; 4] =
    ["Eine Katze & ein Hund schlafen .", "Zwei <b> Hunde rennen .", "Hier steht ein Haus .", "Heute regnet es ."];
const SECOND: [&str; 4] =
    ["Ein Hund & eine Katze schlafen .", "Zwei <b> Hunde laufen .", "Ein Haus steht hier .", "Es regnet heute ."];
const GOOD: [&str; 4] =
    ["Eine Katze & ein Hund schlafen .", "Zwei <b> Hunde laufen da .", "Hier steht ein Haus .", "Es regnet heute ."];
const BAD: [&str; 4] = ["Katze Hund & schlafen .", "Zwei <b> rennen .", "Haus hier .", "Heute regnet ."];

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// Two segments of the first document, two of the second.
fn segments(lines: &[&str; 4], document: usize) -> String {
    let segment = |n: usize| format!("<seg id=\"{}\">{}</seg>\n", n + 1, escaped(lines[2 * document + n]));
    [0, 1].map(segment).concat()
}

/// The whole set in XML; the second reference lacks the second document if `is_cut`.
fn xml(is_cut: bool) -> String {
    let document = |document: usize| {
        let version = |element: &str, lines: &[&str; 4]| {
            let name = element.split(' ').next().unwrap();
            format!("<{element}><p>{}</p></{name}>\n", segments(lines, document))
        };
        let second = version("ref lang=\"de\" translator=\"B\"", &SECOND);
        let parts = [
            version("src lang=\"en\"", &SOURCES),
            version("ref lang=\"de\" translator=\"A\"", &FIRST),
            if is_cut && document == 1 { String::new() } else { second },
            version("hyp lang=\"de\" system=\"good\"", &GOOD),
            version("hyp lang=\"de\" system=\"bad\"", &BAD),
        ];
        format!("<doc origlang=\"en\" id=\"doc-{document}\">\n{}</doc>\n", parts.concat())
    };
    format!("<?xml version='1.0' encoding='utf-8'?>\n<dataset id=\"t\">\n{}{}</dataset>\n", document(0), document(1))
}

/// One part in SGML, the documents in this order.
fn sgml(set: &str, system: &str, lines: &[&str; 4], order: [usize; 2]) -> String {
    let document =
        |n: usize| format!("<DOC docid=\"doc-{n}\" sysid=\"{system}\">\n<p>\n{}</p>\n</DOC>\n", segments(lines, n));
    format!("<{set} setid=\"t\" srclang=\"any\">\n{}</{set}>\n", order.map(document).concat())
}

fn project() -> Project {
    let project = Project::new();
    let write = |name: &str, lines: &[&str; 4]| project.write(name, lines.map(|line| format!("{line}\n")).concat());
    write("src", &SOURCES);
    write("a", &FIRST);
    write("b", &SECOND);
    write("good", &GOOD);
    write("bad", &BAD);
    project.write("set.xml", xml(false));
    project.write("bare.xml", xml(false).split_once("?>\n").unwrap().1);
    project.write("cut.xml", xml(true));
    project.write("lines.xml", xml(false).lines().take(16).map(|line| format!("{line}\n")).collect::<String>());
    project
        .write("more.sgm", sgml("tstset", "more", &GOOD, [0, 1]).replace("id=\"2\"", "id=\"2\">x</seg><seg id=\"3\""));
    project.write("src.sgm", sgml("srcset", "", &SOURCES, [0, 1]));
    project.write("a.sgm", sgml("refset", "ref", &FIRST, [1, 0]));
    project.write("good.sgm", sgml("tstset", "good", &GOOD, [1, 0]));
    project
}

fn scores(project: &Project, args: &[&str]) -> (Value, String) {
    let output = project.mt(&[&["eval", "--chrf", "--bleu", "--json"], args].concat());
    succeeds(&output);
    (serde_json::from_str(&stdout(&output)).unwrap(), stderr(&output))
}

#[test]
fn documents_score_as_their_text_does() {
    let project = project();
    let (mut plain, _) = scores(&project, &["--hyp", "good", "bad", "--ref", "a", "b", "--paired-bs"]);
    for (system, name) in plain.as_array_mut().unwrap().iter_mut().zip(["good", "bad"]) {
        system["hyp"] = name.into();
    }
    assert_eq!(scores(&project, &["--hyp", "set.xml", "--ref", "set.xml", "--paired-bs"]).0, plain);
    let (one, _) = scores(&project, &["--hyp", "good", "--ref", "a"]);
    for (hypothesis, reference) in [
        ("set.xml#good", "set.xml#A"),
        ("good", "set.xml#A"),
        ("set.xml#good", "a"),
        ("good.sgm", "a.sgm"),
        ("good.sgm", "set.xml#A"),
        ("bare.xml#good", "bare.xml#A"),
    ] {
        assert_eq!(scores(&project, &["--hyp", hypothesis, "--ref", reference]).0, one, "{hypothesis} {reference}");
    }
    // What is not whole is left out.
    let (found, says) = scores(&project, &["--hyp", "cut.xml#good", "--ref", "cut.xml"]);
    assert_eq!(found, one);
    assert!(
        says.contains("cut.xml#B is left out: 2 of 4 segments are missing, first segment \"1\" of document \"doc-1\""),
        "{says}"
    );
    let (_, says) = scores(&project, &["--hyp", "good", "more.sgm", "more.sgm", "--ref", "a.sgm"]);
    assert_eq!(says.matches("more.sgm is left out").count(), 2, "{says}");
    let packed = project.mt_with_input(
        &["eval", "--chrf", "--bleu", "--json", "--hyp", "-", "--ref", "a"],
        sgml("tstset", "x", &GOOD, [0, 1]).as_bytes(),
    );
    assert_eq!(serde_json::from_str::<Value>(&stdout(&packed)).unwrap(), one);
}

#[test]
fn sentences_have_the_names_of_their_documents() {
    let project = project();
    let args = ["eval", "--chrf", "--json", "--sentence-level", "--hyp", "set.xml", "--ref", "set.xml#A"];
    let output = project.mt(&args);
    succeeds(&output);
    let lines: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let places = |line: &Value| -> Vec<[Value; 3]> {
        line.as_array().unwrap().iter().map(|it| ["document", "segment", "hyp"].map(|key| it[key].clone())).collect()
    };
    let both = |document: &str, segment: &str| {
        ["good", "bad"].map(|system| [document, segment, system].map(Value::from)).to_vec()
    };
    let found: Vec<_> = lines.iter().map(places).collect();
    assert_eq!(found, [both("doc-0", "1"), both("doc-0", "2"), both("doc-1", "1"), both("doc-1", "2")]);
}

#[test]
fn a_model_translates_the_sources_of_documents() {
    let project = project();
    succeeds(&project.train(&sets(&["train.max_updates=2"])));
    let of = |source: &str, reference: &[&str]| {
        let args = ["--model", "runs/small", "--ppl", "--src", source, "--ref"];
        scores(&project, &[&args[..], reference].concat()).0
    };
    let plain = of("src", &["a", "b"]);
    assert_eq!(of("set.xml", &["set.xml"]), plain);
    assert_eq!(of("src.sgm", &["a.sgm", "set.xml#B"]), plain);
}

#[test]
fn wrong_test_sets_are_errors() {
    let project = project();
    project.write("other.sgm", sgml("tstset", "x", &GOOD, [0, 1]).replace("doc-1", "doc-9"));
    project.write("short.xml", &xml(false)[..900]);
    for (hypothesis, reference, code, words) in [
        ("set.xml#nobody", "set.xml", 1, &["has no translations of systems by \"nobody\"", "\"good\", \"bad\""][..]),
        ("src.sgm", "a", 1, &["has no translations of systems", "--src takes sources"]),
        ("good", "src.sgm", 1, &["has no references"]),
        ("good#x", "a", 2, &["a name behind # is for test sets"]),
        ("other.sgm", "a.sgm", 1, &["other.sgm", "\"doc-9\" is not in the rest of the test set", "the same segments"]),
        ("lines.xml", "lines.xml", 1, &["lines.xml", "ends without </dataset>", "the file was cut short"]),
        ("more.sgm", "a.sgm", 1, &["more.sgm", "segment \"3\" of document \"doc-0\" is not in the rest"]),
        ("good", "a.sgm#x", 1, &["by \"x\"", "it has those by \"ref\""]),
        ("short.xml", "a", 1, &["short.xml", "is the file whole?"]),
        ("nothing#x", "a", 1, &["nothing"]),
    ] {
        fails(&project.mt(&["eval", "--hyp", hypothesis, "--ref", reference]), code, words);
    }
    // Other commands read lines.
    fails(&project.mt(&["score", "--model", "x", "--src", "set.xml", "--tgt", "a"]), 1, &[]);
}
