//! Any text as a test set of WMT, in XML or SGML; and what is read of it, put into the order of each of its parts.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use mt::data::text::documents;

fuzz_target!(|text: &str| {
    let Ok(versions) = documents::read(text, Path::new("set.xml")) else { return };
    for version in &versions {
        let places: Vec<_> = version.segments.iter().map(|(place, _)| place.clone()).collect();
        for other in &versions {
            if let Ok(aligned) = documents::aligned(other.clone(), &places) {
                assert!(aligned.segments.iter().map(|(place, _)| place).eq(&places));
                assert!(aligned.segments.iter().all(|(_, text)| !text.contains('\n')));
            }
        }
    }
});
