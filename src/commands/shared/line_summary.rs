//! The lines that a warning is about: how many, and the first of them.

/// Some of the lines of an input, or of their translations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LineSummary {
    /// The first of them, from 1; 0 if there are none.
    first: usize,
    count: usize,
}

impl LineSummary {
    /// Adds one. Lines come in order.
    pub(crate) fn add(&mut self, line: usize) {
        if self.count == 0 {
            self.first = line;
        }
        self.count += 1;
    }

    /// The subject of a warning and its verb, out of `all` lines: "the line is", "1 of 9 lines (line 4) is", "2 of 9
    /// lines (the first is line 4) are". `None` without any.
    pub(crate) fn subject(self, all: usize, noun: &str, [singular, plural]: [&str; 2]) -> Option<String> {
        let Self { first, count } = self;
        match (count, all) {
            (0, _) => None,
            (_, 1) => Some(format!("the {noun} {singular}")),
            (1, _) => Some(format!("1 of {all} {noun}s (line {first}) {singular}")),
            _ => Some(format!("{count} of {all} {noun}s (the first is line {first}) {plural}")),
        }
    }

    /// Where they are: "line 4 of stdin", "2 of 9 lines (the first is line 4 of stdin)". `None` without any.
    pub(crate) fn location(self, all: usize, file: &str) -> Option<String> {
        let Self { first, count } = self;
        match count {
            0 => None,
            1 => Some(format!("line {first} of {file}")),
            _ => Some(format!("{count} of {all} lines (the first is line {first} of {file})")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_agree_with_the_count() {
        let mut some = LineSummary::default();
        let subject = |some: LineSummary, all| some.subject(all, "line", ["is", "are"]);
        assert_eq!((subject(some, 9), some.location(9, "a.txt")), (None, None));
        some.add(4);
        assert_eq!(subject(some, 1).unwrap(), "the line is");
        assert_eq!(subject(some, 9).unwrap(), "1 of 9 lines (line 4) is");
        assert_eq!(some.location(9, "a.txt").unwrap(), "line 4 of a.txt");
        some.add(6);
        assert_eq!(subject(some, 9).unwrap(), "2 of 9 lines (the first is line 4) are");
        assert_eq!(some.location(9, "a.txt").unwrap(), "2 of 9 lines (the first is line 4 of a.txt)");
    }
}
