//! Stands for what draws pictures in a build without the feature `pictures`.

use std::collections::BTreeSet;

use crate::error::{Error, Result};

fn lacks() -> Error {
    let error = Error::usage("this build of mt draws no pictures: it lacks the feature `pictures`");
    error.help("name a .html file, or build with cargo's default features")
}

pub fn png(_: &str) -> Result<(Vec<u8>, BTreeSet<char>)> {
    Err(lacks())
}

pub mod curves {
    use crate::error::Result;
    use crate::report::page::Run;

    pub fn whole(_: &[Run], _: &[String]) -> Result<String> {
        Err(super::lacks())
    }
}

pub mod sentence {
    use crate::error::Result;
    use crate::explanation::Explanation;

    pub fn whole(_: &Explanation) -> Result<String> {
        Err(super::lacks())
    }

    pub fn maps(_: &Explanation) -> Result<String> {
        Err(super::lacks())
    }
}
