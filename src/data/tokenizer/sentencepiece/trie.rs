//! Pieces by their bytes, for finding all that a text begins with.

use std::collections::VecDeque;

/// The value of a node where no key ends.
const NONE: u32 = u32::MAX;

/// A trie of bytes. The children of a node lie side by side, in order.
pub(super) struct Trie {
    nodes: Vec<Node>,
    /// The children of the root, which has many; 0: none.
    root: Box<[u32; 256]>,
}

#[derive(Clone, Copy)]
struct Node {
    first: u32,
    children: u16,
    byte: u8,
    value: u32,
}

impl Trie {
    /// From keys and their values; no key may be empty or occur twice.
    pub(super) fn new(mut keys: Vec<(&[u8], u32)>) -> Self {
        keys.sort_unstable();
        let leaf = |byte| Node { first: 0, children: 0, byte, value: NONE };
        let mut nodes = vec![leaf(0)];
        // Nodes to complete: their number, the keys below them, how many bytes these share.
        let mut open = VecDeque::from([(0, &keys[..], 0)]);
        while let Some((number, mut below, depth)) = open.pop_front() {
            let first = nodes.len();
            let mut value = NONE;
            while let Some(((key, of_key), rest)) = below.split_first() {
                let Some(&byte) = key.get(depth) else {
                    (value, below) = (*of_key, rest);
                    continue;
                };
                let end = below.partition_point(|(key, _)| key.get(depth) <= Some(&byte));
                let (inside, after) = below.split_at(end);
                open.push_back((nodes.len(), inside, depth + 1));
                nodes.push(leaf(byte));
                below = after;
            }
            let children = (nodes.len() - first) as u16;
            if let Some(node) = nodes.get_mut(number) {
                *node = Node { first: first as u32, children, value, ..*node };
            }
        }
        let mut root = Box::new([0; 256]);
        for (number, node) in nodes.iter().enumerate().skip(1).take(usize::from(nodes[0].children)) {
            root[usize::from(node.byte)] = number as u32;
        }
        Self { nodes, root }
    }

    /// Calls `found` with the length and the value of every key that `text` begins with, the shortest first.
    #[inline]
    pub(super) fn prefixes(&self, text: &[u8], mut found: impl FnMut(usize, u32)) {
        let Some((&byte, rest)) = text.split_first() else { return };
        let mut number = self.root[usize::from(byte)] as usize;
        if number == 0 {
            return;
        }
        let mut length = 1;
        let mut rest = rest.iter();
        while let Some(node) = self.nodes.get(number) {
            if node.value != NONE {
                found(length, node.value);
            }
            let Some(byte) = rest.next() else { return };
            let first = node.first as usize;
            let children = self.nodes.get(first..first + usize::from(node.children)).unwrap_or_default();
            let Ok(child) = children.binary_search_by_key(byte, |child| child.byte) else { return };
            number = first + child;
            length += 1;
        }
    }

    /// The length of the longest key that `text` begins with.
    pub(super) fn longest(&self, text: &[u8]) -> Option<usize> {
        let mut longest = None;
        self.prefixes(text, |length, _| longest = Some(length));
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_every_prefix() {
        let keys = ["a", "ab", "abcd", "b", "▁", "▁a", "\u{10FFFF}"];
        let trie = Trie::new(keys.iter().zip(0..).map(|(key, value)| (key.as_bytes(), value)).collect());
        let found = |text: &str| {
            let mut found = Vec::new();
            trie.prefixes(text.as_bytes(), |length, value| found.push((length, value)));
            found
        };
        assert_eq!(found("abcde"), [(1, 0), (2, 1), (4, 2)]);
        assert_eq!(found("abc"), [(1, 0), (2, 1)]);
        assert_eq!(found("▁ab"), [(3, 4), (4, 5)]);
        assert_eq!(found("\u{10FFFF}"), [(4, 6)]);
        assert_eq!(found("c"), []);
        assert_eq!(found(""), []);
        assert_eq!((trie.longest("abcd".as_bytes()), trie.longest("".as_bytes())), (Some(4), None));
        assert_eq!(Trie::new(Vec::new()).longest(b"a"), None);
    }
}
