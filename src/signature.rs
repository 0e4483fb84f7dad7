//! Detects by its first bytes what a file is, if it is not what the user named it for.

use std::fmt;

/// What a file is, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Signature {
    /// Completes "the file …".
    what: String,
    help: String,
    /// Whether it is text, of another program.
    is_document: bool,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the file {}", self.what)
    }
}

impl std::error::Error for Signature {}

/// Compressed formats: first bytes, extension, name, and the command that unpacks them.
const PACKED: [(&[u8], &str, &str, &str); 13] = [
    (b"PK\x03\x04", "zip", "zip", "unzip"),
    (b"7z\xBC\xAF\x27\x1C", "7z", "7-Zip", "7z x"),
    (b"Rar!\x1A\x07", "rar", "RAR", "unrar x"),
    (b"\x04\x22\x4D\x18", "lz4", "lz4", "lz4 -d"),
    (b"\x02\x21\x4C\x18", "lz4", "lz4", "lz4 -d"),
    // Its first bytes depend on the settings; these are the usual ones.
    (b"\x5D\0\0", "lzma", "lzma", "xz -d --format=lzma"),
    (b"LZIP\x01", "lz", "lzip", "lzip -d"),
    (b"\x89LZO\0\r\n\x1A\n", "lzo", "lzop", "lzop -d"),
    (b"\x1F\x9D", "Z", "compress", "gzip -d"),
    (b"\x1F\xA0", "z", "compress", "gzip -d"),
    (b"\xFF\x06\0\0sNaPpY", "sz", "snappy", "snzip -d"),
    // Brotli has no signature.
    (b"", "br", "brotli", "brotli -d"),
    (b"", "bz2", "bzip2", "bunzip2"),
];

/// Formats that are no text: first bytes, what the file is, and what to do about it.
const BINARY: [(&[u8], &str, &str); 15] = [
    (b"%PDF-", "is a PDF document", COPY),
    (b"%!PS", "is a PostScript document", COPY),
    (b"{\\rtf", "is an RTF document", COPY),
    (b"\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1", "is a document of Microsoft Office", COPY),
    (
        b"PAR1",
        "is a Parquet table",
        "mt reads Parquet from data sets of the hub: { hub = \"ORG/NAME\", … }; else write it as text",
    ),
    (b"ARROW1\0\0", "is an Arrow table", TABLE),
    (b"Obj\x01", "is an Avro table", TABLE),
    (b"SQLite format 3\0", "is an SQLite database", TABLE),
    (b"\x89HDF\r\n\x1A\n", "is an HDF5 file", OTHER),
    (b"\x93NUMPY", "is an array of numpy", OTHER),
    (b"\x89PNG\r\n\x1A\n", "is a picture", OTHER),
    (b"\xFF\xD8\xFF", "is a picture", OTHER),
    (b"\x7FELF", "is a program", OTHER),
    (b"\xDE\x12\x04\x95", "is a catalogue of gettext", "write it as text with `msgunfmt`"),
    (b"\x95\x04\x12\xDE", "is a catalogue of gettext", "write it as text with `msgunfmt`"),
];

const COPY: &str = "copy its text into a plain file in UTF-8, with a sentence on each line";
const TABLE: &str = "write the column that is wanted as plain text in UTF-8, with a sentence on each line";
const OTHER: &str = "check which file was meant";

/// How pointers of Git LFS begin, today's and former ones.
const LFS: [&[u8]; 3] = [
    b"version https://git-lfs.github.com/spec/",
    b"version https://hawser.github.com/spec/",
    b"version http://git-media.io/v/",
];
/// How pointers of DVC begin.
const DVC: [&[u8]; 2] = [b"outs:\n- md5:", b"outs:\n- hash:"];
/// What the hub answers instead of a file.
const MESSAGES: [&[u8]; 4] =
    [b"Entry not found", b"Invalid username or password.", b"Repository not found", b"Invalid rev id: main"];
/// A pointer is not larger.
const LFS_BYTES: usize = 1024;

impl Signature {
    fn new(what: impl Into<String>, help: impl Into<String>) -> Self {
        Self { what: what.into(), help: help.into(), is_document: false }
    }

    fn document(what: impl Into<String>, help: impl Into<String>) -> Self {
        Self { is_document: true, ..Self::new(what, help) }
    }

    fn packed(form: &str, command: &str) -> Self {
        let help = format!("unpack it with `{command}`; gzip, xz and zstd files need not be unpacked");
        Self::new(format!("is compressed with {form}, which mt does not read"), help)
    }

    /// What to do about it.
    pub(crate) fn help(&self) -> &str {
        &self.help
    }

    /// Detects a stand-in for a file that was not fetched: a pointer of Git LFS, git-annex or DVC, or a page or message
    /// that a server sent instead.
    pub(crate) fn placeholder(head: &[u8]) -> Option<Self> {
        let is_lfs =
            head.len() <= LFS_BYTES && contains(head, b"\noid ") && LFS.iter().any(|begin| head.starts_with(begin));
        if is_lfs {
            let help = "fetch it with `git lfs pull` (install git-lfs first), or download it itself";
            return Some(Self::new("is a pointer of Git LFS, not the file itself", help));
        }
        let is_annex = head.starts_with(b"/annex/objects/")
            || (head.starts_with(b"../") || head.starts_with(b".git/")) && contains(head, b".git/annex/objects/");
        if is_annex && head.iter().filter(|byte| **byte == b'\n').count() <= 1 {
            return Some(Self::new("is a pointer of git-annex, not the file itself", "fetch it with `git annex get`"));
        }
        if DVC.iter().any(|begin| head.starts_with(begin)) {
            return Some(Self::new("is a pointer of DVC, not the file itself", "fetch it with `dvc pull`"));
        }
        if MESSAGES.contains(&head.trim_ascii()) {
            let message = String::from_utf8_lossy(head.trim_ascii()).into_owned();
            let help = "fetch the file again: check its name, and whether you may read it (HF_TOKEN)";
            return Some(Self::new(format!("is only the hub's message \"{message}\""), help));
        }
        let root = root(head)?;
        (root.eq_ignore_ascii_case("html")).then(|| {
            let help = "a download may have got the page of an error or a login instead of the file: look at it, and \
                        fetch the file again";
            Self::document("is a page in HTML", help)
        })
    }

    /// Detects what is no text: placeholders, archives and other binary formats.
    pub(crate) fn binary(head: &[u8]) -> Option<Self> {
        if let Some(placeholder) = Self::placeholder(head).filter(|it| !it.is_document) {
            return Some(placeholder);
        }
        if let Some(office) = office(head) {
            return Some(office);
        }
        let mut packed = PACKED.iter().filter(|(begin, ..)| !begin.is_empty());
        if let Some((_, _, form, command)) = packed.find(|(begin, ..)| head.starts_with(begin)) {
            return Some(Self::packed(form, command));
        }
        if let Some((_, what, help)) = BINARY.iter().find(|(begin, ..)| head.starts_with(begin)) {
            return Some(Self::new(*what, *help));
        }
        match head {
            [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, 0x53, 0x59, ..] => {
                Some(Self::packed("bzip2", "bunzip2"))
            }
            // A pickle, of protocol 2 or later.
            [0x80, 2..=5, ..] => Some(Self::new("is a pickle of Python, such as PyTorch writes", OTHER)),
            // The length of the header comes first, in little-endian order.
            [_, _, _, _, 0, 0, 0, 0, b'{', b'"', ..] => Some(Self::new("holds weights (safetensors)", OTHER)),
            [b'\n', _, b'\n', 5, b'<', b'u', b'n', b'k', b'>', ..] => {
                Some(Self::new("is a SentencePiece model", "name it in `tokenizer.path`, or with --tokenizer"))
            }
            _ if head.get(257..262) == Some(b"ustar") => {
                Some(Self::new("is a tar archive", "unpack it with `tar -xf`, and name a file that was in it"))
            }
            _ => None,
        }
    }

    /// Detects by its name a format that has no signature.
    pub(crate) fn packed_name(path: &std::path::Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?;
        let (_, _, form, command) = PACKED.iter().find(|(_, name, ..)| *name == extension)?;
        let help = format!("if it is, as its name says, compressed with {form}: unpack it with `{command}`");
        Some(Self::new("is no text", help))
    }

    /// Detects a document in HTML, XML or SGML.
    pub(crate) fn page_or_markup(head: &[u8]) -> Option<Self> {
        Self::placeholder(head).filter(|it| it.is_document).or_else(|| markup(head))
    }

    /// Whether a text begins as a test set of WMT in XML or SGML.
    pub(crate) fn is_test_set(head: &[u8]) -> bool {
        root(head).is_some_and(|root| TEST_SETS.iter().any(|set| root.eq_ignore_ascii_case(set)))
    }

    /// Whether the first line is an object in JSON that is not empty.
    pub(crate) fn is_object(head: &[u8]) -> bool {
        let line = begun(head).split(|byte| *byte == b'\n').next().unwrap_or_default();
        let object = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(line);
        line.starts_with(b"{") && object.is_ok_and(|object| !object.is_empty())
    }

    /// Detects text of two or four bytes per character, by its first line.
    pub(crate) fn wide_text(head: &[u8]) -> Option<Self> {
        head.split(|byte| *byte == b'\n').next().filter(|line| line.contains(&0))?;
        let encoding = wide_encoding(head, 0)?;
        let help = format!("convert it with `iconv -f {encoding} -t UTF-8`");
        Some(Self::new(format!("is text in {encoding}, not UTF-8"), help))
    }

    /// Detects text whose lines are not sentences: documents of other programs.
    pub(crate) fn structured_text(head: &[u8]) -> Option<Self> {
        if let Some(page) = Self::placeholder(head) {
            return Some(page);
        }
        markup(head).or_else(|| json(head)).or_else(|| lines_of_others(head))
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Text from its first character that is neither white space nor a byte order mark.
fn begun(head: &[u8]) -> &[u8] {
    head.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(head).trim_ascii_start()
}

/// Detects documents of office programs: zip archives, recognised by the name of the first file in them.
fn office(head: &[u8]) -> Option<Signature> {
    let length = u16::from_le_bytes(head.strip_prefix(b"PK\x03\x04")?.get(22..24)?.try_into().ok()?);
    let name = head.get(30..30 + usize::from(length))?;
    // The first member in files of Word, Excel and PowerPoint depends on the program that wrote them.
    let folders: [&[u8]; 6] = [b"[Content_Types].xml", b"_rels/", b"docProps/", b"word/", b"xl/", b"ppt/"];
    let what = match name {
        name if folders.iter().any(|begin| name.starts_with(begin)) => "a document of Microsoft Office",
        b"mimetype" if contains(head, b"application/epub") => "a book (EPUB)",
        b"mimetype" => "an OpenDocument file, as LibreOffice writes them",
        _ => return None,
    };
    let help = "save it from its program as plain text in UTF-8, a sheet as text with tabs between columns";
    Some(Signature::new(format!("is {what}"), help))
}

/// The name of the outermost element of a document in XML, HTML or SGML, if it begins as one.
fn root(head: &[u8]) -> Option<String> {
    let mut rest = begun(head);
    // Declarations and comments, and then the root element.
    let mut is_declared = false;
    loop {
        let after = |end: &[u8]| {
            let at = rest.windows(end.len()).position(|window| window == end)?;
            rest.get(at + end.len()..).map(<[u8]>::trim_ascii_start)
        };
        rest = match rest {
            [b'<', b'?', b'x', b'm', b'l', ..] => {
                is_declared = true;
                let Some(after) = after(b"?>") else { return Some("xml".to_owned()) };
                after
            }
            [b'<', b'!', b'-', b'-', ..] => after(b"-->")?,
            [b'<', b'!', kind @ ..] if kind.get(..7).is_some_and(|kind| kind.eq_ignore_ascii_case(b"doctype")) => {
                return Some(name(kind.get(7..)?.trim_ascii_start()));
            }
            [b'<', element @ ..] => {
                let name = name(element);
                let ends = element.get(name.len()).is_some_and(|end| b" \t\r\n/>".contains(end));
                return (is_declared || (ends && is_known(&name))).then_some(name);
            }
            _ => return is_declared.then(|| "xml".to_owned()),
        };
    }
}

fn name(bytes: &[u8]) -> String {
    let is_part = |byte: &&u8| byte.is_ascii_alphanumeric() || b"_:.-".contains(byte);
    bytes.iter().take_while(is_part).map(|byte| char::from(*byte)).collect()
}

/// Elements that hold whole documents, whatever comes before them.
fn is_known(element: &str) -> bool {
    let known = ["html", "tmx", "xliff", "rss"];
    known.iter().chain(&TEST_SETS).any(|name| element.eq_ignore_ascii_case(name))
}

/// Elements around a test set of WMT.
const TEST_SETS: [&str; 5] = ["srcset", "refset", "tstset", "mteval", "dataset"];

/// Documents in XML and SGML.
fn markup(head: &[u8]) -> Option<Signature> {
    const PLAIN: &str =
        "mt reads plain text, a sentence on each line, and tables with tabs between columns ({ tsv = … })";
    let root = root(head)?;
    let (what, help) = match root.to_ascii_lowercase().as_str() {
        "tmx" => (
            "a translation memory (TMX)",
            format!("{PLAIN}: convert it (OPUS offers such corpora as `moses`, which is plain text)"),
        ),
        "xliff" => ("a translation file (XLIFF)", format!("{PLAIN}: write its segments so")),
        set if TEST_SETS.contains(&set) => (
            "a test set in SGML or XML",
            format!(
                "{PLAIN}: `mt eval` alone reads such sets; `sacrebleu -t SET -l PAIR --echo src ref` writes those of \
                 WMT so"
            ),
        ),
        "error" => ("an error that a server sent, in XML", "fetch the file again".to_owned()),
        _ => ("a document in XML", format!("{PLAIN}: write its text so")),
    };
    Some(Signature::document(format!("is {what}"), help))
}

/// Text of other programs whose lines are not all sentences.
fn lines_of_others(head: &[u8]) -> Option<Signature> {
    const SENTENCES: &str = "write its sentences as plain text, one on each line";
    let mut lines = begun(head).split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let (first, second) = (lines.next()?, lines.next().unwrap_or_default());
    let is_first_of_subtitles = first == b"1" && contains(second, b" --> ");
    let (what, help) = if is_first_of_subtitles || first == b"WEBVTT" {
        ("has subtitles (SRT or WebVTT)", SENTENCES)
    } else if first.starts_with(b"msgid \"") {
        ("is a catalogue of gettext (PO)", SENTENCES)
    } else if first.starts_with(b"<url>") && first.ends_with(b"</url>") {
        ("has lines about its talks, as IWSLT distributes them", "remove these lines from both sides: `grep -v '^<'`")
    } else {
        return None;
    };
    Some(Signature::document(what, help))
}

/// JSON, in lines or whole.
fn json(head: &[u8]) -> Option<Signature> {
    use serde_json::Value;
    let text = begun(head);
    if !matches!(text.first(), Some(b'{' | b'[')) {
        return None;
    }
    let is_object = |value: &Value| value.as_object().is_some_and(|object| !object.is_empty());
    // A long file is not here as a whole.
    let is_pretty = || {
        let mut lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        let (first, second) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        let is_key = second.starts_with(b"\"") && contains(second, b"\":");
        (first == b"{" && is_key) || (first == b"[" && second == b"{")
    };
    let whole_is_object = || match serde_json::from_slice(text) {
        Ok(Value::Array(list)) => list.first().is_some_and(is_object),
        Ok(value) => is_object(&value),
        Err(_) => false,
    };
    (Signature::is_object(text) || is_pretty() || whole_is_object()).then(|| {
        let help = "write the text as plain lines (`jq -r .KEY FILE`), or as a table with tabs ({ tsv = … }); JSON \
                    lines of the hub are read with { hub = … }";
        Signature::document("holds JSON, not plain text", help)
    })
}

/// How many bytes decide on an encoding, and how many zeros among them may be damage.
const SEEN: usize = 200;
const FEW_ZEROS: usize = 4;

/// Detects an encoding of two or four bytes per character by the positions of zeros: in most characters, half of the
/// bytes or more are zero. `first` is the number of the first byte in the text.
pub(crate) fn wide_encoding(bytes: &[u8], first: u64) -> Option<&'static str> {
    let bytes = bytes.get(..SEEN).unwrap_or(bytes);
    let zeros = [0, 1, 2, 3].map(|position| {
        let is_there = |(i, byte): &(u64, &u8)| **byte == 0 && i % 4 == position;
        (first..).zip(bytes).filter(is_there).count()
    });
    // No character needs the last of four bytes, and few the one before it.
    let is_always = zeros.map(|count| count > 1 && count >= bytes.len() / 4);
    let (low, high) = (zeros[1] + zeros[3], zeros[0] + zeros[2]);
    match is_always {
        [_, false, true, true] | [false, _, true, true] => Some("UTF-32LE"),
        [true, true, _, false] | [true, true, false, _] => Some("UTF-32BE"),
        _ if low > FEW_ZEROS + high => Some("UTF-16LE"),
        _ if high > FEW_ZEROS + low => Some("UTF-16BE"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1\n\
                             oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";

    #[test]
    fn placeholders_are_no_text() {
        let annex = b"/annex/objects/SHA256E-s42--ab.txt\n";
        for (head, what, help) in [
            (POINTER, "Git LFS", "git lfs pull"),
            (annex, "git-annex", "git annex get"),
            (b"<!DOCTYPE html>\n<html lang=\"en\">", "page in HTML", "fetch the file again"),
            (b"\xEF\xBB\xBF \n<!doctype HTML PUBLIC", "page in HTML", "fetch the file again"),
            (b"<!-- a -->\n<HTML>\n", "page in HTML", "fetch the file again"),
            (b"../.git/annex/objects/Xy/1z/SHA256E-s4--a/SHA256E-s4--a", "git-annex", "git annex get"),
            (b"outs:\n- md5: a304afb96060aad90176268345e10355\n  path: train.en\n", "DVC", "dvc pull"),
            (b"Entry not found\n", "the hub's message", "HF_TOKEN"),
            (b"<?xml version=\"1.0\"?><!DOCTYPE html PUBLIC \"x\">", "page in HTML", "fetch the file again"),
        ] {
            let found = Signature::placeholder(head).unwrap();
            assert!(found.to_string().contains(what) && found.help().contains(help), "{found}");
        }
        for text in [
            &b"version https://git-lfs.github.com/spec/v1 is the first line of a pointer\n"[..],
            b"<p>html</p>\n",
            b"<htmlx>",
            b"Entry not found in the list.\n",
            b"../.git is a folder\n",
            b"html\n",
            b"",
        ] {
            assert_eq!(Signature::placeholder(text), None);
            assert_eq!(Signature::structured_text(text), None);
        }
    }

    #[test]
    fn formats_are_known_by_their_beginnings() {
        let mut tar = vec![b'a'; 600];
        tar[257..262].copy_from_slice(b"ustar");
        let zip = |name: &str, content: &str| {
            let lengths = [name.len() as u8, 0, 0, 0];
            [&b"PK\x03\x04"[..], &[0; 22], &lengths, name.as_bytes(), content.as_bytes()].concat()
        };
        for (head, what, help) in [
            (POINTER, "Git LFS", "git lfs pull"),
            (b"PK\x03\x04\x14\0", "zip", "`unzip`"),
            (&zip("train.en", "text"), "zip", "`unzip`"),
            (&zip("[Content_Types].xml", "<"), "Microsoft Office", "plain text in UTF-8"),
            (&zip("xl/workbook.xml", "<"), "Microsoft Office", "plain text in UTF-8"),
            (&zip("mimetype", "application/epub+zip"), "EPUB", "plain text in UTF-8"),
            (&zip("mimetype", "application/vnd.oasis.opendocument.text"), "OpenDocument", "plain text in UTF-8"),
            (b"BZh91AY&SY and more", "bzip2", "`bunzip2`"),
            (b"7z\xBC\xAF\x27\x1C\0\x04", "7-Zip", "`7z x`"),
            (b"\x04\x22\x4D\x18\x64\x40", "lz4", "`lz4 -d`"),
            (b"\x5D\0\0\x80\0\xFF\xFF", "lzma", "--format=lzma"),
            (b"\x1F\x9D\x90", "compress", "`gzip -d`"),
            (b"%PDF-1.7\n%", "PDF", "a sentence on each line"),
            (b"PAR1\x15\x04", "Parquet", "hub"),
            (b"\x80\x02}q\0", "pickle", "check which file"),
            (b"\x10\x02\0\0\0\0\0\0{\"__metadata__\"", "safetensors", "check"),
            (b"\n\x0E\n\x05<unk>\x15", "SentencePiece", "tokenizer.path"),
            (&tar, "tar", "`tar -xf`"),
        ] {
            let found = Signature::binary(head).unwrap();
            assert!(found.to_string().contains(what) && found.help().contains(help), "{found}: {}", found.help());
        }
        for text in
            [&b"BZh91AY is no block\n"[..], b"PK\n", b"PAR 1\n", b"]\0\n", b"7z x\n", b"LZIP\n", b"", b"%P\n", b"Obj\n"]
        {
            assert_eq!(Signature::binary(text), None);
        }
        let name = |name: &str| Signature::packed_name(std::path::Path::new(name)).map(|it| it.help().to_owned());
        assert!(name("t.br").unwrap().contains("`brotli -d`") && name("t.bz2").unwrap().contains("bunzip2"));
        assert_eq!((name("t.en"), name("br")), (None, None));
    }

    #[test]
    fn documents_are_no_sentences() {
        for (head, what) in [
            (&b"<?xml version=\"1.0\"?>\n<!DOCTYPE tmx SYSTEM \"tmx14.dtd\">\n<tmx>"[..], "TMX"),
            (b"<?xml version=\"1.0\" encoding=\"UTF-8\" ?>\n<tmx version=\"1.4\">\n", "TMX"),
            (b"<tmx version=\"1.4\">\n<header/>", "TMX"),
            (b"\xEF\xBB\xBF<?xml version='1.0'?><xliff version=\"1.2\">", "XLIFF"),
            (b"<srcset setid=\"newstest2014\" srclang=\"any\">\n", "test set"),
            (b"<?xml version='1.0'?>\n<dataset id=\"wmt21\">", "test set"),
            (b"<dataset><doc id='a'>", "test set"),
            (b"<?xml version=\"1.0\"?>\n<Error><Code>NoSuchKey</Code>", "server"),
            (b"<?xml version=\"1.0\"?>\n<!-- x --><a>", "XML"),
            (b"<?xml", "XML"),
            (b"{\"translation\": {\"en\": \"a\", \"de\": \"b\"}}\n{\"", "JSON"),
            (b"[\n {\"a\": \"b\"},\n {\"a\": \"c\"}\n]\n", "JSON"),
            (b"{\n \"a\": \"b\"\n}", "JSON"),
            (b"{\n  \"version\": \"1.0\",\n  \"truncation\": nu", "JSON"),
            (b"1\n00:00:01,000 --> 00:00:04,000\nHello.\n", "subtitles"),
            (b"WEBVTT\n\n00:01.000 --> 00:04.000\nHello.\n", "subtitles"),
            (b"msgid \"\"\nmsgstr \"\"\n", "gettext"),
            (b"<url>http://www.ted.com/talks/x</url>\n<keywords>talks</keywords>\n", "IWSLT"),
        ] {
            let found = Signature::structured_text(head).unwrap();
            assert!(found.to_string().contains(what), "{found}");
        }
        for text in [
            &b"<doc> is a tag\n"[..],
            b"<unk> <s>\n",
            b"<b>Bold</b> text\n",
            b"<CHAPTER ID=1>\nA speech\n",
            b"<2de> Guten Tag\n",
            b"{} is empty\n",
            b"{}\n",
            b"[1]\n",
            b"[\"a\"]\n",
            b"[Music]\n",
            b"{\"a\": 1} is an object\n",
            b"zero \0 and \0\0\n",
            b"\0\0\0\0\0\0\0\0\0\0\0\0",
            b"< html >\n",
            b"1\n2\n",
            b"{\n",
            b"{\n\"Good morning\", he said.\n",
            b"msgid is a word\n",
            b"<url> is an element\n",
        ] {
            let found = Signature::structured_text(text).or_else(|| Signature::wide_text(text));
            assert_eq!(found, None, "{:?}", String::from_utf8_lossy(text));
        }
    }
}
