//! Which columns of a data set are source and target.

use std::fmt;

use super::{Shard, listed};
use crate::error::{Error, Result};

/// A column of a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column {
    /// The column of that name.
    Name(String),
    /// The column of that number, from 1, in tables without a line of names.
    Number(usize),
}

impl Column {
    pub(super) fn is_number(&self) -> bool {
        matches!(self, Self::Number(_))
    }
}

impl From<&str> for Column {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "{name}"),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

/// The two columns.
#[derive(Clone, Debug)]
pub(super) struct Columns {
    pub(super) source: Column,
    pub(super) target: Column,
}

impl Columns {
    /// Their names, for a file in which columns have names.
    pub(super) fn names(&self, shard: &Shard) -> Result<[String; 2]> {
        match (&self.source, &self.target) {
            (Column::Name(source), Column::Name(target)) => Ok([source.clone(), target.clone()]),
            _ => {
                let what =
                    format!("columns have names here, and no numbers such as {} and {}", self.source, self.target);
                let help =
                    "name them in quotes with `source` and `target`; numbers are for tables without a line of names";
                Err(Error::failure(what).at(&shard.name).help(help))
            }
        }
    }

    pub(super) fn missing(&self, shard: &Shard, there: &[String]) -> Error {
        let what = format!("there are no columns `{}` and `{}`", self.source, self.target);
        Error::failure(what).at(&shard.name).help(self.help(there))
    }

    pub(super) fn help(&self, there: &[String]) -> String {
        format!("with `source` and `target` name two of {}", listed(there))
    }
}
