//! BLEU of the pieces of a SentencePiece model, beside sacrebleu's `--tokenize flores101` with the same model.

mod common;

use std::fs;

use common::project::{Project, fails, stdout, succeeds};
use serde_json::Value;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/comet/encoder/sentencepiece.bpe.model");

/// sacrebleu 2.6.0, with this model in place of its own (`$SACREBLEU/models/sacrebleu_tokenizer_spm.model`).
#[test]
fn scores_are_those_of_sacrebleu() {
    let project = Project::new();
    let hypotheses = "Der Hund schläft auf dem Sofa.\nZwei Katzen laufen  schnell über die Straße 😀 \n\n\
                      Ein Haus, ein Baum und ein Auto — alles da!\n";
    project.write("hyp", hypotheses);
    project.write(
        "one",
        "Der Hund schläft auf einem Sofa.\nZwei Katzen rennen schnell über die Strasse 😀\nNichts\n\
         Ein Haus, ein Baum und ein Auto: alles da!\n",
    );
    project.write(
        "two",
        "Ein Hund schläft auf dem Sofa.\nZwei Katzen laufen schnell über eine Straße\nLeer.\n\
         Ein Haus, ein Baum, ein Auto — alles ist da!\n",
    );
    let folder = project.path("sacrebleu/models");
    fs::create_dir_all(&folder).unwrap();
    fs::copy(MODEL, folder.join("sacrebleu_tokenizer_spm.model")).unwrap();
    let eval = |args: &[&str]| {
        let args = [&["eval", "--hyp", "hyp", "--json", "--ref"], args].concat();
        project.command(&args).env("SACREBLEU", project.path("sacrebleu")).output().unwrap()
    };
    let bleu = |args: &[&str]| -> Value {
        let output = eval(args);
        succeeds(&output);
        serde_json::from_str::<Value>(&stdout(&output)).unwrap()["bleu"].clone()
    };
    for (references, lower, score, lengths) in [
        (&["one"][..], false, 78.384_244_328_405_66, (92, 97)),
        (&["one", "two"], false, 95.369_241_839_936_25, (92, 95)),
        (&["one"], true, 82.762_144_767_331_07, (92, 92)),
        (&["one", "two"], true, 98.530_368_424_718_74, (92, 92)),
    ] {
        let lower = if lower { &["--lowercase"][..] } else { &[] };
        let found = bleu(&[references, &["--tokenize", "flores101"], lower].concat());
        assert!((found["score"].as_f64().unwrap() - score).abs() < 1e-9, "{found}");
        assert_eq!((&found["sys_len"], &found["ref_len"]), (&lengths.0.into(), &lengths.1.into()), "{found}");
        assert!(found["signature"].as_str().unwrap().contains("|tok:flores101|"), "{found}");
    }
    // Another name for it; any model by its path, with its own signature.
    assert_eq!(bleu(&["one", "--tokenize", "spm"]), bleu(&["one", "--tokenize", "flores101"]));
    let own = bleu(&["one", "--tokenize", "spm", "--tokenize-model", MODEL]);
    assert_eq!(own["score"], bleu(&["one", "--tokenize", "spm"])["score"]);
    let signature = own["signature"].as_str().unwrap();
    assert!(signature.contains("|tok:spm-") && !signature.contains("flores"), "{signature}");
    let named = bleu(&["one", "--tokenize", "flores200", "--tokenize-model", MODEL]);
    assert!(named["signature"].as_str().unwrap().contains("|tok:flores200-"), "{named}");

    for (args, code, words) in [
        (&["one", "--tokenize", "flores200"][..], 1, "fetch https://tinyurl.com/flores200sacrebleuspm to there"),
        (&["one", "--tokenize", "flores200", "--tokenize-model", "one"], 1, "name a .model file of SentencePiece"),
        (&["one", "--tokenize", "13a", "--tokenize-model", MODEL], 2, "a tokenizer that needs a model"),
        (&["one", "--tokenize", "spm", "--report"], 2, "--report cannot use --tokenize spm"),
        (&["one", "--tokenize", "ja-mecab"], 2, "needs a dictionary"),
        (
            &["one", "--tokenize", "ja-mecab", "--tokenize-model", "."],
            1,
            "with sys.dic, unk.dic, char.bin and matrix.bin",
        ),
        (&["one", "--tokenize", "FLORES200"], 2, "none, flores101, flores200, spBLEU-1K, spm"),
    ] {
        fails(&eval(args), code, &[words]);
    }
}
