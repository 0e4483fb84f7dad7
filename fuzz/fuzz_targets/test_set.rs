//! Any text as a test set of WMT, in XML or SGML; and what is read of it, put into the order of each of its parts.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use mt::data::text::documents::{self, Places};

fuzz_target!(|text: &str| {
    let Ok(versions) = documents::read(text, Path::new("set.xml")) else { return };
    for version in &versions {
        let places = Places::new(version.segments.iter().map(|(place, _)| place.clone()).collect());
        for other in &versions {
            if let Ok(lines) = places.order(other) {
                assert_eq!(lines.len(), places.list.len());
                assert!(lines.iter().all(|text| !text.contains('\n')));
            }
        }
    }
});
