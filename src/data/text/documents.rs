//! Test sets as WMT publishes them: in XML since 2021, before that in NIST's SGML.
//!
//! ```text
//! <dataset><doc id="…"><src lang="en"><p><seg id="1">…   <ref lang="de" translator="A">…   <hyp system="…">…
//! <srcset><doc docid="…"><seg id="1">…          <refset><doc docid="…" sysid="ref">…       <tstset>…
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use quick_xml::Reader;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::attributes::Attribute;
use quick_xml::events::{BytesStart, Event};

use crate::error::{Error, Result};
use crate::escape::quoted;
use crate::limits::TAG_BYTES;

/// What a part of a test set is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// What is translated.
    Sources,
    /// Translations to compare with.
    References,
    /// Translations to score.
    Translations,
}

impl Part {
    /// As messages call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sources => "sources",
            Self::References => "references",
            Self::Translations => "translations of systems",
        }
    }
}

/// Where a segment is in a test set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The document's name, one for all its segments.
    pub document: Arc<str>,
    /// The segment's number there.
    pub segment: String,
}

/// The segments of one translator or system, or of the sources.
#[derive(Clone, Debug, PartialEq)]
pub struct Version {
    /// What it is.
    pub part: Part,
    /// The translator's or system's name; empty if there is none.
    pub name: String,
    /// Its segments in their order, each in one line.
    pub segments: Vec<(Place, String)>,
}

/// Reads a test set; `path` is its name in errors.
///
/// # Errors
/// It ends too early, or a segment belongs to nothing.
pub fn read(text: &str, path: &Path) -> Result<Vec<Version>> {
    let text = &*escaped(text);
    let mut reader = Reader::from_str(text);
    let config = reader.config_mut();
    // SGML leaves out what XML demands.
    config.check_end_names = false;
    config.allow_dangling_amp = true;
    config.allow_unmatched_ends = true;
    let mut state = State::default();
    loop {
        let at = |error: Error, offset: u64| {
            let before = &text.as_bytes()[..text.len().min(offset as usize)];
            error.at_line(path, 1 + before.iter().filter(|byte| **byte == b'\n').count(), 0)
        };
        let offset = reader.buffer_position();
        let event = reader.read_event().map_err(|error| {
            let what = Error::failure(format!("the test set cannot be read: {error}"));
            at(what.caused_by(error), reader.error_position()).help("is the file whole? Fetch it again")
        })?;
        match event {
            Event::Start(start) => state.start(&start).map_err(|error| at(error, offset))?,
            Event::Empty(start) => {
                state.start(&start).map_err(|error| at(error, offset))?;
                state.end(start.local_name().as_ref());
            }
            Event::End(end) => state.end(end.local_name().as_ref()),
            Event::Text(text) => state.add(&text),
            Event::CData(text) => state.add(&text),
            Event::GeneralRef(entity) => {
                let name = &*entity;
                let character = entity.resolve_char_ref().ok().flatten().map(String::from);
                let known = character.or_else(|| resolve_predefined_entity(name).map(str::to_owned));
                state.add(&known.unwrap_or_else(|| format!("&{name};")));
            }
            Event::Eof if state.is_closed => return Ok(state.whole()),
            Event::Eof => {
                let what = match (&state.segment, &state.root) {
                    (Some(_), _) => "the test set ends within a segment".to_owned(),
                    (None, Some(root)) => format!("the test set ends without </{root}>"),
                    (None, None) => "the test set is empty".to_owned(),
                };
                let error = at(Error::failure(what), text.len() as u64);
                return Err(error.help("the file was cut short: fetch it again"));
            }
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => {}
        }
    }
}

/// The text with `<` escaped where it stands for itself: in segments. In those of SGML, all but the tags that end a
/// segment does; in those of XML, which must not have it, what begins no tag.
fn escaped(text: &str) -> String {
    /// Tags that end a segment, whose own end tag may be left out.
    const ENDS: [&str; 11] =
        ["/seg", "seg", "/p", "/hl", "/doc", "/srcset", "/refset", "/tstset", "/src", "/ref", "/hyp"];
    let is_xml = text.split("<seg").next().unwrap_or_default().contains("<dataset");
    let mut parts = text.split('<');
    let mut escaped = parts.next().unwrap_or_default().to_owned();
    let mut in_segment = false;
    // What ends the comment or the section of plain text that has begun.
    let mut until = None;
    for part in parts {
        if until.is_none() && (is_xml || !in_segment) {
            until = [("![CDATA[", "]]>"), ("!--", "-->")].into_iter().find(|(begin, _)| part.starts_with(begin));
        }
        if let Some((_, end)) = until {
            until = until.filter(|_| !part.contains(end));
            escaped.push('<');
            escaped.push_str(part);
            continue;
        }
        let is_of_name = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'/';
        let length = part.bytes().take_while(is_of_name).count();
        let is_tag = |tag: &&str| part[..length].eq_ignore_ascii_case(tag);
        let is_end = ENDS.iter().any(is_tag) && !(is_xml && is_tag(&"/hl"));
        let looks_like_tag = part.starts_with(|c: char| c.is_ascii_alphabetic() || "/!?".contains(c));
        let is_text = in_segment && !is_end && !(is_xml && looks_like_tag && part.contains('>'));
        escaped.push_str(if is_text { "&lt;" } else { "<" });
        escaped.push_str(part);
        if is_end {
            let tag = part.split('>').next().unwrap_or_default();
            in_segment = is_tag(&"seg") && !tag.ends_with('/');
        }
    }
    escaped
}

/// What has been read.
#[derive(Default)]
struct State {
    /// The element around all.
    root: Option<String>,
    /// Whether it has ended.
    is_closed: bool,
    versions: Vec<Version>,
    /// Which of these is whose.
    numbers: HashMap<(Part, String), usize>,
    document: Arc<str>,
    /// Of SGML, what the set is and whose.
    of_set: Option<(Part, String)>,
    /// Whether the document is one of a test suite, whose segments do not count.
    is_of_suite: bool,
    /// What the segments belong to that come now, and to whom.
    version: Option<(Part, String)>,
    /// The segment that has begun: where it is, and its text so far.
    segment: Option<(Place, String)>,
}

impl State {
    fn start(&mut self, start: &BytesStart<'_>) -> Result<()> {
        // Names are kept, and compared, for each segment.
        if start.len() > TAG_BYTES {
            let what = format!("the tag that begins an element has {} bytes, more than {TAG_BYTES}", start.len());
            return Err(Error::failure(what).help("is this a test set of WMT, in XML or SGML?"));
        }
        let attribute = |names: &[&str]| {
            let mut attributes = start.html_attributes();
            let all = attributes.with_checks(false).flatten();
            let mut found = all.filter(|it| names.iter().any(|name| is(it.key.local_name().as_ref(), name)));
            found.next().map(|attribute| value(&attribute)).unwrap_or_default()
        };
        let name = start.local_name();
        if self.root.is_none() {
            self.root = Some(name.as_ref().to_owned());
        }
        let set = [("srcset", Part::Sources), ("refset", Part::References), ("tstset", Part::Translations)];
        let of_document = [("src", Part::Sources), ("ref", Part::References), ("hyp", Part::Translations)];
        let among = |parts: [(&str, Part); 3]| parts.iter().find(|(part, _)| is(name.as_ref(), part)).map(|it| it.1);
        if among(set).or(among(of_document)).is_some() || is(name.as_ref(), "doc") {
            self.finish();
        }
        if let Some(part) = among(set) {
            self.of_set = Some((part, attribute(&["sysid"])));
        } else if let Some(part) = among(of_document) {
            self.version = Some((part, attribute(&["translator", "system"])));
        } else if is(name.as_ref(), "doc") {
            self.document = attribute(&["docid", "id"]).into();
            self.is_of_suite = !attribute(&["testsuite"]).is_empty();
            let own = attribute(&["sysid"]);
            self.version = self.of_set.clone().map(|(part, of_set)| match part {
                // Some files name the language that a document was written in.
                Part::Sources => (part, String::new()),
                _ if own.is_empty() => (part, of_set),
                _ => (part, own),
            });
        } else if is(name.as_ref(), "seg") {
            self.finish();
            let (document, segment) = (self.document.clone(), attribute(&["id"]));
            if self.version.is_none() {
                let what = "a segment is neither of sources nor of references nor of translations";
                return Err(Error::failure(what).help("is this a test set of WMT, in XML or SGML?"));
            }
            if !self.is_of_suite {
                self.segment = Some((Place { document, segment }, String::new()));
            }
        }
        Ok(())
    }

    fn end(&mut self, name: &str) {
        self.is_closed |= self.root.as_ref().is_some_and(|root| is(name, root));
        let is_among = |names: &[&str]| names.iter().any(|other| is(name, other));
        let is_around = is_among(&["doc", "src", "ref", "hyp", "srcset", "refset", "tstset"]);
        // XML has such elements in segments.
        if is(name, "seg") || is_around || self.of_set.is_some() && is_among(&["p", "hl"]) {
            self.finish();
        }
        if is_among(&["src", "ref", "hyp"]) {
            self.version = None;
        }
    }

    fn add(&mut self, text: &str) {
        if let Some((_, segment)) = &mut self.segment {
            segment.push_str(text);
        }
    }

    /// Ends a segment: in one line, since it is one sentence or a few.
    fn finish(&mut self) {
        let (Some((place, text)), Some((part, name))) = (self.segment.take(), &self.version) else { return };
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let new = self.versions.len();
        let index = *self.numbers.entry((*part, name.clone())).or_insert(new);
        if index == new {
            self.versions.push(Version { part: *part, name: name.clone(), segments: Vec::new() });
        }
        self.versions[index].segments.push((place, line));
    }

    /// All versions. As sacrebleu, of XML with references without the segments that have none.
    fn whole(self) -> Vec<Version> {
        let Self { mut versions, of_set, .. } = self;
        let of_references = || versions.iter().filter(|version| version.part == Part::References);
        if of_set.is_none() {
            let places = of_references().flat_map(|version| version.segments.iter().map(|(place, _)| place.clone()));
            let places: HashSet<Place> = places.collect();
            if !places.is_empty() {
                versions.iter_mut().for_each(|it| it.segments.retain(|(place, _)| places.contains(place)));
                versions.retain(|version| !version.segments.is_empty());
            }
            return versions;
        }
        // Translators that share the documents among themselves make one version.
        let documents = |version: &Version| -> HashSet<Arc<str>> {
            version.segments.iter().map(|(place, _)| place.document.clone()).collect()
        };
        let all: HashSet<Arc<str>> = of_references().flat_map(documents).collect();
        let is_shared =
            of_references().count() > 1 && of_references().map(|it| documents(it).len()).sum::<usize>() == all.len();
        if is_shared {
            let segments = versions.into_iter().flat_map(|version| version.segments).collect();
            let name = of_set.map(|(_, name)| name).unwrap_or_default();
            return vec![Version { part: Part::References, name, segments }];
        }
        versions
    }
}

/// Whether an element or attribute has this name: SGML does not distinguish case.
fn is(name: &str, wanted: &str) -> bool {
    name.eq_ignore_ascii_case(wanted)
}

fn value(attribute: &Attribute<'_>) -> String {
    let text = &*attribute.value;
    quick_xml::escape::unescape(text).map_or_else(|_| text.to_owned(), |text| text.into_owned())
}

/// The places of a whole test set, in order.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// In order.
    pub list: Vec<Place>,
    numbers: HashMap<Place, usize>,
}

impl Places {
    /// These, in this order.
    pub fn new(list: Vec<Place>) -> Self {
        let numbers = list.iter().cloned().zip(0..).collect();
        Self { list, numbers }
    }

    /// The lines of a version in this order.
    ///
    /// # Errors
    /// A segment is missing, there twice, or of another test set.
    pub fn order(&self, version: &Version) -> Result<Vec<String>> {
        let name = |place: &Place| {
            let segment = match place.segment.is_empty() {
                true => "a segment without an id".to_owned(),
                false => format!("segment {}", quoted(&place.segment)),
            };
            format!("{segment} of document {}", quoted(&place.document))
        };
        let mut found: BTreeMap<usize, &String> = BTreeMap::new();
        for (place, text) in &version.segments {
            let Some(number) = self.numbers.get(place) else {
                return Err(Error::failure(format!("{} is not in the rest of the test set", name(place))));
            };
            if found.insert(*number, text).is_some() {
                return Err(Error::failure(format!("{} is there twice", name(place))));
            }
        }
        let (missing, all) = (self.list.len() - found.len(), self.list.len());
        if let Some((_, first)) = self.list.iter().enumerate().find(|(number, _)| !found.contains_key(number)) {
            return Err(Error::failure(format!("{missing} of {all} segments are missing, first {}", name(first))));
        }
        Ok(found.into_values().cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<(Part, String, Vec<String>)> {
        let versions = read(text, Path::new("set.xml")).unwrap();
        let segment = |(place, text): (Place, String)| format!("{}:{} {text}", place.document, place.segment);
        versions.into_iter().map(|it| (it.part, it.name, it.segments.into_iter().map(segment).collect())).collect()
    }

    #[test]
    fn xml_has_all_parts_of_each_document() {
        let text = r#"<?xml version='1.0' encoding='utf-8'?>
<!-- a comment --><dataset id="set"><collection id="general">
<doc origlang="en" id="a&amp;b">
 <src lang="en"><p><seg id="1">Caf&#233; &lt;b&gt; &amp; &unknown; AT&T</seg>
 <seg id="2"><![CDATA[x < y]]></seg></p></src>
 <ref lang="de" translator="A"><p><seg id="1">eins</seg><seg id="2">zwei
   und   <hl>drei</hl></seg></p></ref>
 <ref lang="de" translator="B"><p><seg id="1">1</seg><seg id="2"/></p></ref>
 <hyp system="online-X" lang="de"><p><seg id="1">h1</seg><seg id="2">h2</seg></p></hyp>
</doc>
<doc id="c"><src><seg id="1">s</seg></src><ref translator="A"><seg id="1">r</seg></ref></doc>
</collection></dataset>"#;
        let of = |part, name: &str, lines: &[&str]| {
            (part, name.to_owned(), lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(
            texts(text),
            [
                of(Part::Sources, "", &["a&b:1 Café <b> & &unknown; AT&T", "a&b:2 x < y", "c:1 s"]),
                of(Part::References, "A", &["a&b:1 eins", "a&b:2 zwei und drei", "c:1 r"]),
                of(Part::References, "B", &["a&b:1 1", "a&b:2 "]),
                of(Part::Translations, "online-X", &["a&b:1 h1", "a&b:2 h2"]),
            ]
        );
    }

    #[test]
    fn sgml_has_one_part_and_many_systems() {
        let text = "<!DOCTYPE refset SYSTEM \"x.dtd\">\n<REFSET setid=\"t\" srclang=\"any\" trglang=\"en\">\n\
                    <DOC sysid=\"ref1\" docid=d1 genre=\"news\">\n<hl>\n<seg id=\"1\"> A &amp; B </seg>\n</hl>\n<p>\n\
                    <seg id=2>two\n<seg id=3>1 < 2 <b c</seg>\n</p>\n</DOC>\n\
                    <doc docid=\"d1\" sysid='ref2'><seg id=\"1\">x</seg></doc></refset>";
        let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            texts(text),
            [
                (Part::References, "ref1".to_owned(), lines(&["d1:1 A & B", "d1:2 two", "d1:3 1 < 2 <b c"])),
                (Part::References, "ref2".to_owned(), lines(&["d1:1 x"])),
            ]
        );
        let sources = "<srcset setid=\"t\"><doc docid=\"d\"><seg id=\"1\">s</seg></doc></srcset>";
        assert_eq!(texts(sources), [(Part::Sources, String::new(), lines(&["d:1 s"]))]);
        assert_eq!(texts(&sources.replace("srcset", "tstset"))[0].0, Part::Translations);
    }

    #[test]
    fn what_has_no_reference_or_is_of_a_test_suite_does_not_count() {
        let text = "<dataset><doc id=\"a\"><src><p><seg id=\"1\">s</seg><seg id=\"2\">t</seg></p></src>\
                    <ref><p><seg id=\"1\">r</seg></p></ref><hyp system=\"H\"><seg id=\"1\">h</seg><seg id=\"2\">i</seg>\
                    </hyp></doc><doc id=\"b\" testsuite=\"x\"><src><seg id=\"1\">u</seg></src></doc></dataset>";
        let lines = |text: &str| -> Vec<String> { texts(text).into_iter().flat_map(|it| it.2).collect() };
        assert_eq!(lines(text), ["a:1 s", "a:1 r", "a:1 h"]);
        // Without references, only the test suite is left out.
        assert_eq!(lines(&text.replace("ref>", "src>")).len(), 5);
        let apart = "<refset sysid=\"all\"><doc docid=\"a\" sysid=\"X\"><seg id=\"1\">x</seg></doc>\
                     <doc docid=\"b\" sysid=\"Y\"><seg id=\"1\">y</seg></doc></refset>";
        assert_eq!(texts(apart), [(Part::References, "all".to_owned(), vec!["a:1 x".to_owned(), "b:1 y".to_owned()])]);
        let sources = apart.replace("refset", "srcset");
        assert_eq!(texts(&sources), [(Part::Sources, String::new(), vec!["a:1 x".to_owned(), "b:1 y".to_owned()])]);
        assert_eq!(texts(&apart.replace("refset", "tstset")).len(), 2);
    }

    #[test]
    fn segments_without_their_end_and_stray_brackets_lose_nothing() {
        let text = "<?xml version='1.0'?>\n<tstset><doc docid=\"d\" sysid=\"A\"><p><seg id=1>x <y\n<seg id=2>z</p>\
                    </doc>\n<doc docid=\"d\" sysid=\"B\"><seg id=1>p<seg id=2>q</doc></tstset>";
        let lines = |lines: [&str; 2]| lines.map(str::to_owned).to_vec();
        let of = |name: &str, of| (Part::Translations, name.to_owned(), lines(of));
        assert_eq!(texts(text), [of("A", ["d:1 x <y", "d:2 z"]), of("B", ["d:1 p", "d:2 q"])]);
        let xml = "<dataset><doc id=\"d\"><!-- a < b --><hyp system=\"A\"><p><seg id=\"1\">x < y <3 <b z <i>k</i>\
                   <![CDATA[1 < 2]]></seg><seg id=\"2\">z</seg></p></hyp></doc></dataset>";
        assert_eq!(texts(xml), [of("A", ["d:1 x < y <3 <b z k1 < 2", "d:2 z"])]);
    }

    #[test]
    fn damaged_sets_are_errors_with_their_line() {
        for (text, line, words) in [
            ("<srcset>\n<doc docid=\"d\">\n<seg id=\"1\">s", 3, "ends within a segment"),
            ("<dataset>\n<doc id=\"d\"><seg id=\"1\">s</seg>", 2, "neither of sources"),
            ("<srcset><doc docid=\"d\">\n<seg id=\"1", 2, "cannot be read"),
            ("<srcset><doc docid=\"d\">\n<seg id=\"1\">s</seg>\n", 3, "ends without </srcset>"),
            ("<srcset><doc docid=\"d\">\n\n<!-- ", 3, "cannot be read"),
        ] {
            let error = read(text, Path::new("set.xml")).unwrap_err();
            let location = error.location().unwrap();
            assert_eq!(location.line, line, "{text}: {error}");
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    /// Whatever is changed in one character, it is read or refused.
    #[test]
    fn changed_sets_are_read_or_refused() {
        let text = "<?xml version='1.0'?><!DOCTYPE dataset [<!ENTITY a 'b'>]><dataset id=\"t\"><!-- c --><doc id=\"d\">\
                    <src lang=\"en\"><p><seg id=\"1\">a &amp; &#65; <![CDATA[x]]></seg><seg id='2'/></p></src></doc>\
                    </dataset>";
        for at in 0..text.len() {
            for new in ["", "<", ">", "&", ";", "\"", "'", "/", "!", "[", "]", "-", "?", " ", "\0", "é"] {
                let changed = [&text[..at], new, &text[at + 1..]].concat();
                if let Ok(versions) = read(&changed, Path::new("set.xml")) {
                    let lines = versions.iter().flat_map(|version| &version.segments);
                    assert!(lines.into_iter().all(|(_, line)| !line.contains('\n')));
                }
                let _ = read(&changed[..at], Path::new("set.xml"));
            }
        }
    }

    #[test]
    fn segments_are_found_by_document_and_number() {
        let place = |document: &str, segment: &str| Place { document: document.into(), segment: segment.into() };
        let version = |segments: &[(&str, &str, &str)]| Version {
            part: Part::References,
            name: String::new(),
            segments: segments.iter().map(|(d, s, text)| (place(d, s), (*text).to_owned())).collect(),
        };
        let places = Places::new(vec![place("a", "1"), place("a", "2"), place("b", "1")]);
        let mixed = version(&[("b", "1", "z"), ("a", "2", "y"), ("a", "1", "x")]);
        assert_eq!(places.order(&mixed).unwrap(), ["x", "y", "z"]);
        for (segments, words) in [
            (
                &[("a", "1", "x"), ("a", "2", "y")][..],
                "1 of 3 segments are missing, first segment \"1\" of document \"b\"",
            ),
            (&[("a", "1", "x"), ("a", "1", "y"), ("b", "1", "z")], "\"1\" of document \"a\" is there twice"),
            (
                &[("a", "1", ""), ("a", "2", ""), ("b", "1", ""), ("c", "1", "")],
                "\"1\" of document \"c\" is not in the rest",
            ),
        ] {
            let error = places.order(&version(segments)).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
