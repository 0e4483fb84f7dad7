//! COMET on the device, beside the scores of `unbabel-comet`.

use candle_core::DType;
use mt::comet::{Comet, Found, Hardware, Lines, Place};

use crate::common::comet::{golden, model};
use crate::common::emulator::device;

#[test]
fn scores_are_those_of_the_original() {
    let ([sources, translations, first, second], expected) = golden();
    for (compute, bound) in [(DType::F32, 2e-5), (DType::BF16, 2e-2)] {
        let (device, queue) = device();
        let hardware = Hardware::Gpu { device, queue, compute };
        for (name, expected) in expected.as_object().unwrap() {
            let folder = model(name, |_| true);
            let found = Found::open(&Place::named(folder.path().to_str().unwrap()).unwrap(), true).unwrap();
            let model = Comet::load(&found, &hardware).unwrap();
            for (references, expected) in [&first, &second].into_iter().zip(expected.as_array().unwrap()) {
                let references = std::slice::from_ref(references);
                let lines = Lines { sources: &sources, systems: &[&translations[..]], references };
                let scores = model.scores(lines, |_, _| ()).unwrap();
                let expected = expected.as_array().unwrap();
                assert_eq!(scores[0].len(), expected.len());
                for (line, (found, expected)) in scores[0].iter().zip(expected).enumerate() {
                    let expected = expected.as_f64().unwrap();
                    assert!((found - expected).abs() < bound, "{name}, {compute:?}, line {line}: {found}, {expected}");
                }
            }
        }
    }
}
