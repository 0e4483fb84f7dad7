//! Small dictionaries, written here as MeCab compiles them.

use std::collections::BTreeMap;

use super::*;
use crate::rng::Stream;

/// A word: how it is written, its contexts, kind and cost.
type Entry<'a> = (&'a str, [u16; 3], i16);

/// A double array of texts, each with a number.
fn double_array(texts: &BTreeMap<&[u8], u32>) -> Vec<u8> {
    fn add(texts: &BTreeMap<&[u8], u32>, cells: &mut Vec<Option<[u32; 2]>>, bases: &mut Vec<u32>) -> u32 {
        let mut children: BTreeMap<u32, BTreeMap<&[u8], u32>> = BTreeMap::new();
        for (text, number) in texts {
            let code = text.first().map_or(0, |byte| u32::from(*byte) + 1);
            children.entry(code).or_default().insert(text.get(1..).unwrap_or(&[]), *number);
        }
        let is_free =
            |base: u32| children.keys().all(|code| cells.get((base + code) as usize).is_none_or(Option::is_none));
        let base = (1..).find(|base| !bases.contains(base) && is_free(*base)).unwrap();
        bases.push(base);
        for code in children.keys() {
            let at = (base + code) as usize;
            cells.resize(cells.len().max(at + 1), None);
            cells[at] = Some([0, base]);
        }
        for (code, texts) in &children {
            let next = if *code == 0 { !texts[&[][..]] } else { add(texts, cells, bases) };
            cells[(base + code) as usize] = Some([next, base]);
        }
        base
    }
    let mut cells = vec![Some([0, 0])];
    let base = add(texts, &mut cells, &mut Vec::new());
    cells[0] = Some([base, 0]);
    cells.iter().flat_map(|cell| cell.unwrap_or([0, 0])).flat_map(u32::to_le_bytes).collect()
}

/// `sys.dic` or `unk.dic`.
fn dictionary(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut sorted = entries.to_vec();
    sorted.sort_by_key(|entry| entry.0);
    let mut texts: BTreeMap<&[u8], u32> = BTreeMap::new();
    for (number, (text, ..)) in sorted.iter().enumerate() {
        *texts.entry(text.as_bytes()).or_insert((number as u32) << 8) += 1;
    }
    let array = double_array(&texts);
    let words = sorted.iter().flat_map(|(_, [left, right, kind], cost)| {
        let fields = [*left, *right, *kind, *cost as u16, 0, 0, 0, 0];
        fields.into_iter().flat_map(u16::to_le_bytes)
    });
    let words: Vec<u8> = words.collect();
    let size = (HEADER + array.len() + words.len() + 4) as u32;
    let numbers = [MAGIC ^ size, VERSION, 0, 5, 3, 3, array.len() as u32, words.len() as u32, 4, 0];
    let mut bytes: Vec<u8> = numbers.into_iter().flat_map(u32::to_le_bytes).collect();
    bytes.extend(b"UTF-8".iter().chain(&[0; NAME - 5]));
    bytes.extend([array, words, vec![0; 4]].concat());
    bytes
}

/// Three categories: others (unknown words of at most two characters), white space, and digits, which are grouped
/// even where there are words.
fn character_table() -> Vec<u8> {
    let mut bytes = 3u32.to_le_bytes().to_vec();
    for name in ["DEFAULT", "SPACE", "NUMERIC"] {
        bytes.extend(name.bytes().chain(std::iter::repeat(0)).take(NAME));
    }
    let of = |category: u32, longest: u32, groups: u32, always: u32| {
        1 << category | category << 18 | longest << 26 | groups << 30 | always << 31
    };
    for character in 0..CHARACTERS {
        let known = match u8::try_from(character) {
            Ok(b' ' | b'\t') => of(1, 0, 1, 0),
            Ok(b'0'..=b'9') => of(2, 0, 1, 1),
            _ => of(0, 2, 0, 0),
        };
        bytes.extend(known.to_le_bytes());
    }
    bytes
}

/// A dictionary in a folder.
struct Files(tempfile::TempDir);

impl Files {
    fn new(words: &[Entry<'_>], costs: [i16; 9], settings: &str) -> Self {
        let unknown = [("DEFAULT", [1, 1, 9], 500), ("SPACE", [0, 0, 9], 0), ("NUMERIC", [2, 2, 9], 10)];
        let mut matrix = [3u16, 3].into_iter().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
        matrix.extend(costs.into_iter().flat_map(i16::to_le_bytes));
        let files = Self(tempfile::tempdir().unwrap());
        files.put("sys.dic", &dictionary(words));
        files.put("unk.dic", &dictionary(&unknown));
        files.put("matrix.bin", &matrix);
        files.put("char.bin", &character_table());
        files.put("dicrc", settings.as_bytes());
        files
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.0.path().join(name), bytes).unwrap();
    }

    fn open(&self) -> Result<MeCab> {
        MeCab::open(self.0.path())
    }
}

/// A well-known tongue twister: plums, too, are a kind of peaches.
const WORDS: [Entry<'_>; 5] = [
    ("すもも", [1, 1, 1], 100),
    ("もも", [1, 1, 1], 100),
    ("も", [2, 2, 2], 50),
    ("の", [2, 2, 2], 50),
    ("うち", [1, 1, 1], 80),
];
/// Of each right context (row of three) before each left one: words and particles take turns.
const TURNS: [i16; 9] = [0, 0, 0, 0, 200, -50, 300, -50, 400];

#[test]
fn the_cheapest_way_through_a_line_is_taken() {
    let mecab = Files::new(&WORDS, TURNS, "").open().unwrap();
    assert_eq!(mecab.size(), 5);
    assert_eq!(mecab.split("すもももももももものうち"), ["すもも", "も", "もも", "も", "もも", "の", "うち"]);
    // Unknown ones: up to two characters, or all digits together. White space is no word.
    assert_eq!(mecab.split("犬 の1234も\tもも"), ["犬", "の", "1234", "も", "もも"]);
    assert_eq!(mecab.split("犬の1234"), ["犬の", "1234"]);
    assert_eq!(mecab.split(""), Vec::<&str>::new());
    assert_eq!(mecab.split("  "), Vec::<&str>::new());
    assert_eq!(mecab.split(" の "), ["の"]);
    // Beyond 16 bits, and a group that is too long.
    assert_eq!(mecab.split("😀の"), ["😀", "の"]);
    assert_eq!(mecab.split(&"7".repeat(26)).len(), 2);
    assert_eq!(mecab.split(&"7".repeat(25)).len(), 1);
}

#[test]
fn a_word_may_cost_more_after_white_space() {
    let words = [("가", [1, 1, 1], 10), ("나다", [1, 1, 7], 10), ("나", [1, 1, 1], 30), ("다", [1, 1, 1], 30)];
    let split = |settings: &str, line: &str| -> usize {
        Files::new(&words, [0; 9], settings).open().unwrap().split(line).len()
    };
    assert_eq!(split("", "가 나다"), 2);
    let settings = "cost-factor = 800\nleft-space-penalty-factor = 6,1,7,3000\n";
    assert_eq!(split(settings, "가 나다"), 3);
    assert_eq!(split(settings, "가나다"), 2);
    assert_eq!(split("left-space-penalty-factor = 8,3000", "가 나다"), 2);
}

/// Of all ways, by trying each.
#[test]
fn no_way_is_cheaper() {
    fn least(mecab: &MeCab, line: &str, place: usize, right: u16) -> Option<i64> {
        if place == line.len() {
            let end = Word { contexts: [0, 0], kind: 0, cost: 0 };
            return Some(mecab.cost(right, end, false));
        }
        let mut best = None;
        mecab.words_at(line, place, |[start, end], word| {
            let rest = least(mecab, line, end, word.contexts[1]);
            let cost = rest.map(|rest| rest + mecab.cost(right, word, start > place));
            best = [best, cost].into_iter().flatten().min();
        });
        best
    }
    let mut stream = Stream::new(3, "test");
    let mut cost = |most: u64| stream.below(2 * most) as i16 - most as i16;
    for _ in 0..200 {
        let mut words = WORDS;
        words.iter_mut().for_each(|word| word.2 = cost(300));
        let costs = [(); 9].map(|()| cost(300));
        let mecab = Files::new(&words, costs, "left-space-penalty-factor = 2,150").open().unwrap();
        let line = "すももの うちも4もものもう";
        let found = mecab.split(line);
        let (mut place, mut right, mut total) = (0, 0, 0);
        for word in &found {
            let start = word.as_ptr() as usize - line.as_ptr() as usize;
            let mut of_word = None;
            mecab.words_at(line, place, |at, known| {
                if at == [start, start + word.len()] {
                    of_word = Some(known);
                }
            });
            let of_word = of_word.unwrap();
            total += mecab.cost(right, of_word, start > place);
            (place, right) = (start + word.len(), of_word.contexts[1]);
        }
        total += mecab.cost(right, Word { contexts: [0, 0], kind: 0, cost: 0 }, false);
        assert_eq!((place, Some(total)), (line.len(), least(&mecab, line, 0, 0)), "{found:?}");
    }
}

#[test]
fn damaged_files_are_refused_by_name() {
    let refused = |name: &str, bytes: &[u8]| {
        let files = Files::new(&WORDS, TURNS, "");
        files.put(name, bytes);
        let error = files.open().err().unwrap().to_string();
        assert!(error.contains(name), "{error}");
    };
    for name in ["sys.dic", "unk.dic", "matrix.bin", "char.bin"] {
        let files = Files::new(&WORDS, TURNS, "");
        let whole = std::fs::read(files.0.path().join(name)).unwrap();
        for length in [0, 3, 4, 21, whole.len() / 2, whole.len() - 1] {
            refused(name, &whole[..length]);
        }
        std::fs::remove_file(files.0.path().join(name)).unwrap();
        assert!(files.open().err().unwrap().to_string().contains(name));
    }
    refused("sys.dic", &dictionary(&[("の", [3, 0, 0], 1)]));
    refused("unk.dic", &dictionary(&[("DEFAULT", [0, 0, 0], 1)]));
}

/// Whatever is in the files of the right sizes, a line is split, or they are refused.
#[test]
fn no_damage_makes_it_fail() {
    let mut stream = Stream::new(4, "test");
    for name in ["sys.dic", "unk.dic", "char.bin"] {
        let files = Files::new(&WORDS, TURNS, "");
        let whole = std::fs::read(files.0.path().join(name)).unwrap();
        for _ in 0..100 {
            let mut bytes = whole.clone();
            for _ in 0..8 {
                let most = bytes.len().min(1000) as u64;
                bytes[stream.below(most) as usize] = stream.below(256) as u8;
            }
            let size = bytes.len() as u32;
            if name != "char.bin" {
                bytes[..4].copy_from_slice(&(MAGIC ^ size).to_le_bytes());
            }
            files.put(name, &bytes);
            if let Ok(mecab) = files.open() {
                mecab.split("すもももももももものうち 123 犬");
            }
        }
    }
}
