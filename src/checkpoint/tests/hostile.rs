use super::*;
use crate::ops::matmul::int8::{Quantised, Values};

/// A file with this header, its length stated correctly, and `data` zero bytes.
fn file(dir: &Path, header: &str, data: usize) -> PathBuf {
    raw(dir, header.len() as u64, header, &vec![0; data])
}

fn raw(dir: &Path, length: u64, header: &str, data: &[u8]) -> PathBuf {
    let path = dir.join(MODEL_FILE);
    fs::write(&path, [&length.to_le_bytes()[..], header.as_bytes(), data].concat()).unwrap();
    path
}

const SLOTS: [Slot; 2] = [Slot { name: "a", shape: &[2], offset: 0 }, Slot { name: "b", shape: &[1, 2], offset: 2 }];

fn load(path: &Path) -> Result<[f32; 4]> {
    let mut flat = [9.0; 4];
    load_into(path, &SLOTS, &mut flat).map(|()| flat)
}

#[test]
fn a_foreign_file_in_any_order_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let header = r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},
        "a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}  "#;
    let data: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let path = raw(dir.path(), header.len() as u64, header, &data);
    assert_eq!(load(&path).unwrap(), [3.0, 4.0, 1.0, 2.0]);
}

#[test]
fn hostile_headers_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let entry = |name: &str, dtype: &str, shape: &str, offsets: &str| {
        format!("\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":{offsets}}}")
    };
    let a = entry("a", "F32", "[2]", "[0,8]");
    let cases = [
        ("overlap", format!("{{{a},{}}}", entry("b", "F32", "[1,2]", "[4,12]"))),
        ("same bytes", format!("{{{a},{}}}", entry("b", "F32", "[1,2]", "[0,8]"))),
        ("a hole", format!("{{{a},{}}}", entry("b", "F32", "[1,2]", "[12,20]"))),
        ("beyond the end", format!("{{{a},{}}}", entry("b", "F32", "[1,200]", "[8,808]"))),
        ("short of the end", format!("{{{a}}}")),
        ("backwards", format!("{{{a},{}}}", entry("b", "F32", "[1,2]", "[16,8]"))),
        ("not of the shape", format!("{{{a},{}}}", entry("b", "F32", "[1,3]", "[8,16]"))),
        ("overflow", format!("{{{a},{}}}", entry("b", "F32", "[4611686018427387904,4]", "[8,16]"))),
        ("overflow of bits", format!("{{{a},{}}}", entry("b", "F32", "[576460752303423488]", "[8,16]"))),
        ("negative", format!("{{{a},{}}}", entry("b", "F32", "[1,2]", "[8,-16]"))),
        ("unknown type", format!("{{{a},{}}}", entry("b", "F33", "[1,2]", "[8,16]"))),
        ("twice", format!("{{{a},{},{}}}", entry("b", "F32", "[1,2]", "[8,16]"), entry("b", "F32", "[1,2]", "[8,16]"))),
        ("no object", "[1,2]".into()),
        ("no JSON", "{\"a\":".into()),
        ("deep", "[".repeat(5000)),
        ("trailing", format!("{{{a}}}}}")),
        ("metadata", format!("{{\"__metadata__\":[1],{a}}}")),
    ];
    for (what, header) in cases {
        let error = load(&file(dir.path(), &header, 16)).expect_err(what);
        assert_says(&error, &["not a valid safetensors file", "model.safetensors", "help:"]);
    }
}

#[test]
fn impossible_header_lengths_are_refused_before_anything_is_allocated() {
    let dir = tempfile::tempdir().unwrap();
    for length in [1 << 63, u64::MAX, 1 << 40, 17 << 20, 100, 3] {
        let error = load(&raw(dir.path(), length, "{}", &[])).unwrap_err();
        assert_says(&error, &[&length.to_string(), "not a valid safetensors file"]);
    }
    // A sparse file that is long enough for the header it claims.
    let path = raw(dir.path(), 50 << 20, "{}", &[]);
    fs::File::options().write(true).open(&path).unwrap().set_len(60 << 20).unwrap();
    assert_says(&load(&path).unwrap_err(), &["a header of 52428800 bytes"]);
    for size in 0..8 {
        fs::write(&path, &[0; 8][..size]).unwrap();
        assert_says(&load(&path).unwrap_err(), &["it has only"]);
    }
    assert_says(&load(&dir.path().join("nowhere")).unwrap_err(), &["nowhere"]);
    assert_says(&load(dir.path()).unwrap_err(), &["regular file"]);
    let pipe = dir.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert_says(&load(&pipe).unwrap_err(), &["regular file"]);
}

#[test]
fn all_differences_from_the_model_are_named_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let nan = f32::NAN;
    let path = dir.path().join(MODEL_FILE);
    let tensors = [
        NamedTensor { name: "a", shape: &[2], data: Elements::F32(&[1.0, 2.0]) },
        NamedTensor { name: "b", shape: &[2, 1], data: Elements::F32(&[1.0, 2.0]) },
        NamedTensor { name: "c", shape: &[1], data: Elements::F32(&[1.0]) },
        NamedTensor { name: "n", shape: &[3], data: Elements::F32(&[1.5, 2.5, 3.5]) },
    ];
    super::super::format::write_with_metadata(path.parent().unwrap(), MODEL_FILE, &tensors, &[]).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&nan.to_le_bytes());
    bytes[end - 12..end - 8].copy_from_slice(&f32::NEG_INFINITY.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let slot = |name, shape, offset| Slot { name, shape, offset };
    let slots = [slot("a", &[2], 0), slot("b", &[1, 2], 2), slot("n", &[3], 4), slot("d", &[1], 7)];
    let error = load_into(&path, &slots, &mut [0.0; 8]).unwrap_err();
    assert_says(
        &error,
        &[
            "(4 problems)",
            "`b` is [2, 1], the model has [1, 2]",
            "missing: `d` [1]",
            "superfluous: `c` [1]",
            "2 values of `n`",
            "model.safetensors",
            "help:",
        ],
    );
    assert!(!error.to_string().contains("`a`"));
}

#[test]
fn another_type_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (dtype, size) in [("BF16", 4), ("I32", 8), ("F64", 16)] {
        let a = r#""a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
        let b = format!(r#""b":{{"dtype":"{dtype}","shape":[1,2],"data_offsets":[8,{}]}}"#, 8 + size);
        let header = format!("{{{a},{b}}}");
        assert_says(&load(&file(dir.path(), &header, 8 + size)).unwrap_err(), &[&format!("`b` is {dtype}, not F32")]);
    }
}

#[test]
fn a_model_of_another_size_is_summed_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "{}", 0);
    let names: Vec<String> = (0..100).map(|i| format!("layer.{i}")).collect();
    let slots: Vec<Slot> = names.iter().map(|name| Slot { name, shape: &[1], offset: 0 }).collect();
    assert_says(&load_into(&path, &slots, &mut [0.0]).unwrap_err(), &["(100 problems)", "and 80 more"]);
}

#[test]
fn a_layout_beyond_the_buffer_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let path = file(dir.path(), header, 8);
    for offset in [1, usize::MAX] {
        let slots = [Slot { name: "a", shape: &[2], offset }];
        assert_says(&load_into(&path, &slots, &mut [0.0; 2]).unwrap_err(), &["outside"]);
    }
}

/// A matrix of integers [2, 3], with its scales, and a vector of floats.
fn quantised(scales: &[f32], name: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let shape = [scales.len()];
    let tensors = [
        NamedTensor { name: "m", shape: &[2, 3], data: Elements::I8(&[1, -127, 3, 0, 5, 6]) },
        NamedTensor { name, shape: &shape, data: Elements::F32(scales) },
        NamedTensor { name: "v", shape: &[1], data: Elements::F32(&[7.5]) },
    ];
    save_model(directory.path(), &tensors, None).unwrap();
    let path = directory.path().join(MODEL_FILE);
    (directory, path)
}

const QUANTISED: [Slot; 2] =
    [Slot { name: "m", shape: &[2, 3], offset: 0 }, Slot { name: "v", shape: &[1], offset: 6 }];

#[test]
fn integers_come_back_as_they_are_or_as_what_they_stand_for() {
    let (_directory, path) = quantised(&[0.5, 2.0], "m_scale");
    let mut flat = [0.0; 7];
    load_into(&path, &QUANTISED, &mut flat).unwrap();
    assert_eq!(flat, [0.5, -63.5, 1.5, 0.0, 10.0, 12.0, 7.5]);
    let mut file = TensorFile::open(&path, &QUANTISED).unwrap();
    assert!(file.is_quantised());
    let integers = Quantised { values: vec![1, -127, 3, 0, 5, 6], scales: vec![0.5, 2.0] };
    assert_eq!(file.parameter(0, "m").unwrap(), Values::I8(integers));
    assert_eq!(file.parameter(1, "v").unwrap(), Values::F32(vec![7.5]));
    let mut some = [0.0; 3];
    file.read(0, 2, &mut some).unwrap();
    assert_eq!(some, [1.5, 0.0, 10.0]);
    file.finish().unwrap();
}

#[test]
fn integers_without_their_scales_are_refused() {
    let refused = |scales: &[f32], name: &str| {
        let (_directory, path) = quantised(scales, name);
        load_into(&path, &QUANTISED, &mut [0.0; 7]).unwrap_err()
    };
    assert_says(&refused(&[0.5, 2.0], "other"), &["missing: `m_scale` [2]", "superfluous: `other`"]);
    assert_says(&refused(&[0.5, 2.0, 1.0], "m_scale"), &["`m_scale` is [3], the model has [2]"]);
}

/// As a download leaves it that was broken off after it had made room, or an attacker who has one block to give.
#[test]
fn a_file_of_holes_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    const BYTES: u64 = 1 << 40;
    let header = format!(r#"{{"a":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{BYTES}]}}}}"#, BYTES / 4);
    let path = file(dir.path(), &header, 0);
    let whole = 8 + header.len() as u64 + BYTES;
    fs::File::options().write(true).open(&path).unwrap().set_len(whole).unwrap();
    assert_says(
        &load(&path).unwrap_err(),
        &["most of its bytes were never written: fetch it again", "model.safetensors"],
    );
}

#[test]
fn a_model_of_another_shape_is_refused_before_anything_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let path = file(dir.path(), header, 8);
    let slots = [Slot { name: "a", shape: &[1 << 40], offset: 0 }];
    let error = TensorFile::open(&path, &slots).unwrap().check().unwrap_err();
    assert_says(&error, &["`a` is [2], the model has [1099511627776]"]);
}
