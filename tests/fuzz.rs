//! `mt translate` on text that nobody would write: one line out per line in, and memory that does not grow.

mod common;

use std::io::{Read, Write};
use std::process::Stdio;

use common::project::{Project, succeeds};
use mt::rng::Stream;

const LINES: usize = 20_000;

/// A line of a random kind of text, without its line feed.
fn line(random: &mut Stream) -> Vec<u8> {
    let length = random.below(40) as usize;
    let characters = |random: &mut Stream, ranges: &[(u32, u32)]| -> Vec<u8> {
        let character = |_| {
            let (first, last) = ranges[random.below(ranges.len() as u64) as usize];
            let code = first + random.below(u64::from(last - first) + 1) as u32;
            char::from_u32(code).filter(|c| *c != '\n').unwrap_or('\u{FFFD}')
        };
        (0..length).map(character).collect::<String>().into_bytes()
    };
    match random.below(12) {
        0 => characters(random, &[(0, 0x1F), (0x7F, 0x9F)]),
        1 => characters(random, &[(0x1F300, 0x1FAFF), (0x200D, 0x200D), (0xFE0F, 0xFE0F)]),
        // Letters with many combining marks.
        2 => characters(random, &[(0x61, 0x7A), (0x300, 0x36F), (0x300, 0x36F), (0x20D0, 0x20F0)]),
        3 => characters(random, &[(0x590, 0x6FF), (0x200E, 0x200F), (0x202A, 0x202E), (0x20, 0x20)]),
        4 => characters(random, &[(0x20, 0x20), (0x9, 0x9), (0xA0, 0xA0), (0x2000, 0x200B), (0x3000, 0x3000)]),
        5 => vec![b' '; length],
        6 => vec![0; length],
        // Mostly not UTF-8.
        7 => (0..length).map(|_| random.below(256) as u8).filter(|byte| *byte != b'\n').collect(),
        8 => characters(
            random,
            &[(0x2581, 0x2581), (0x3C, 0x3E), (0x73, 0x73), (0x2028, 0x2029), (0x85, 0x85), (0xD, 0xD)],
        ),
        9 => characters(random, &[(0, 0x10_FFFF)]),
        10 => characters(random, &[(0x4E00, 0x9FFF), (0x3002, 0x3002), (0xFF01, 0xFF1F)]),
        _ => characters(random, &[(0x20, 0x7E)]),
    }
}

/// The peak memory of a process, in bytes.
#[cfg(target_os = "linux")]
fn peak_memory(id: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

#[cfg(not(target_os = "linux"))]
fn peak_memory(_: u32) -> Option<u64> {
    None
}

#[test]
fn every_line_has_a_translation_whatever_it_is() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=4", "--set", "model.max_length=128"]));
    let mut random = Stream::new(7, "fuzz");
    let mut text = Vec::new();
    for i in 0..LINES {
        match i {
            5_000 => text.extend("a long word ".repeat(8_334).bytes()),
            10_000 => text.extend("x".repeat(100_000).bytes()),
            15_000 => text.extend("語".repeat(100_000).bytes()),
            17_500 => text.extend(" ".repeat(100_000).bytes()),
            _ => text.extend(line(&mut random)),
        }
        text.push(b'\n');
    }
    let mut child = project
        .command(&["translate", "--model", "runs/small", "-q", "--beam", "2", "--max-length", "6"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (id, mut stdin) = (child.id(), child.stdin.take().unwrap());
    let writer = std::thread::spawn(move || {
        stdin.write_all(&text).unwrap();
        peak_memory(id)
    });
    let mut out = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(out.iter().filter(|byte| **byte == b'\n').count(), LINES);
    assert!(std::str::from_utf8(&out).is_ok());
    if let Some(peak) = writer.join().unwrap() {
        assert!(peak < 400 << 20, "{} MiB", peak >> 20);
    }
}
