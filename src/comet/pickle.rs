//! Pickles, of which only plain values are taken.
//!
//! A pickle is a program for a stack machine. candle's reader keeps what it builds as plain data: it executes nothing
//! and looks no name up. Before each instruction, what it would allocate is checked, since a few bytes may ask for
//! gigabytes or nest without end.

use candle_core::pickle::{Object, OpCode, Stack};
use serde_json::Value;

use crate::limits;

/// What a pickle builds.
pub(super) fn read(bytes: &[u8]) -> std::result::Result<Object, String> {
    let (mut rest, mut stack) = (bytes, Stack::empty());
    let (mut copies, mut visits) = (0, 0);
    loop {
        let before = rest;
        let instruction = rest.first().and_then(|byte| OpCode::try_from(*byte).ok());
        check(instruction.as_ref(), before, stack.stack(), &mut visits)?;
        // Each value is visited once for each that it is put into.
        if visits > limits::PICKLE_DEPTH * (bytes.len() + limits::PICKLE_COPIES) {
            return Err("it changes its values too often".to_owned());
        }
        if matches!(instruction, Some(OpCode::BinPut | OpCode::LongBinPut)) {
            copies += stack.stack().last().map_or(0, size_of);
        }
        let is_done = stack.read(&mut rest).map_err(|error| error.to_string())?;
        if matches!(instruction, Some(OpCode::BinGet | OpCode::LongBinGet)) {
            copies += stack.stack().last().map_or(0, size_of);
        }
        if copies > limits::PICKLE_COPIES {
            return Err("it repeats its values too often".to_owned());
        }
        if is_done {
            return stack.finalize().map_err(|error| error.to_string());
        }
    }
}

/// Refuses an instruction that would allocate too much or nest too deeply. Counts the values that it visits.
fn check(
    instruction: Option<&OpCode>,
    bytes: &[u8],
    stack: &[Object],
    visits: &mut usize,
) -> std::result::Result<(), String> {
    let above_mark = || stack.len() - stack.iter().rposition(|object| *object == Object::Mark).map_or(0, |at| at + 1);
    let used = match instruction {
        Some(OpCode::BinUnicode) => {
            let length = bytes.get(1..5).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize);
            return match length {
                Some(length) if length > bytes.len() => Err("a text is longer than the pickle".to_owned()),
                _ => Ok(()),
            };
        }
        Some(OpCode::Long1) if bytes.get(1).is_some_and(|length| *length > 8) => {
            return Err("a number has more than 64 bits".to_owned());
        }
        Some(OpCode::Tuple1 | OpCode::Append | OpCode::BinPersId) => 1,
        Some(OpCode::Tuple2 | OpCode::Reduce | OpCode::Build | OpCode::NewObj | OpCode::SetItem) => 2,
        Some(OpCode::Tuple3) => 3,
        Some(OpCode::Tuple | OpCode::Appends | OpCode::SetItems | OpCode::Dict) => above_mark(),
        _ => 0,
    };
    match stack.iter().rev().take(used).any(|object| is_deeper(object, limits::PICKLE_DEPTH, visits)) {
        true => Err("its values nest too deeply".to_owned()),
        false => Ok(()),
    }
}

/// The values within a value.
fn parts(object: &Object) -> Box<dyn Iterator<Item = &Object> + '_> {
    match object {
        Object::Tuple(list) | Object::List(list) => Box::new(list.iter()),
        Object::Dict(pairs) => Box::new(pairs.iter().flat_map(|(key, value)| [key, value])),
        Object::Reduce { callable, args } | Object::Build { callable, args } => {
            Box::new([&**callable, args].into_iter())
        }
        Object::PersistentLoad(object) => Box::new(std::iter::once(&**object)),
        _ => Box::new(std::iter::empty()),
    }
}

fn is_deeper(object: &Object, depth: usize, visits: &mut usize) -> bool {
    *visits += 1;
    depth == 0 || parts(object).any(|part| is_deeper(part, depth - 1, visits))
}

/// How much memory a value takes, in words of 64 bytes: one for each value within it and for each 64 bytes of text.
fn size_of(object: &Object) -> usize {
    let text = match object {
        Object::Unicode(text) => text.len(),
        Object::Class { module_name, class_name } => module_name.len() + class_name.len(),
        _ => 0,
    };
    1 + text / 64 + parts(object).map(size_of).sum::<usize>()
}

/// A value of a table.
pub(super) fn member<'o>(object: &'o Object, name: &str) -> Option<&'o Object> {
    let Object::Dict(pairs) = object else { return None };
    pairs.iter().find(|(key, _)| matches!(key, Object::Unicode(key) if key == name)).map(|(_, value)| value)
}

/// A plain value: text, a number, a boolean, nothing, or a list or table of these; of a table, others are left out.
pub(super) fn plain(object: &Object) -> Option<Value> {
    Some(match object {
        Object::Unicode(text) => Value::from(text.as_str()),
        Object::Int(number) => Value::from(*number),
        Object::Long(number) => Value::from(*number),
        Object::Float(number) => Value::from(*number),
        Object::Bool(is_true) => Value::from(*is_true),
        Object::None => Value::Null,
        Object::List(list) | Object::Tuple(list) => Value::Array(list.iter().map(plain).collect::<Option<_>>()?),
        Object::Dict(pairs) => {
            let pair = |(key, value): &(Object, Object)| match key {
                Object::Unicode(key) => Some((key.clone(), plain(value)?)),
                _ => None,
            };
            Value::Object(pairs.iter().filter_map(pair).collect())
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pickle of these instructions, with a header and an end.
    fn pickle(body: &[u8]) -> Vec<u8> {
        [b"\x80\x02", body, b"."].concat()
    }

    #[test]
    fn plain_values_are_read_and_others_left_out() {
        // {"a": 1, "b": os.system("x"), "c": [True, None, 0.5]}
        let body =
            b"}(X\x01\0\0\0aK\x01X\x01\0\0\0bcos\nsystem\nX\x01\0\0\0x\x85RX\x01\0\0\0c](\x88NG\x3f\xe0\0\0\0\0\0\0eu";
        let value = plain(&read(&pickle(body)).unwrap()).unwrap();
        assert_eq!(value, serde_json::json!({ "a": 1, "c": [true, null, 0.5] }));
    }

    #[test]
    fn what_would_take_all_memory_is_refused() {
        let nested = [vec![b')'], vec![0x85; 1_000_000]].concat();
        // x = (x, x) forty times.
        let doubled = [b")q\0".to_vec(), b"h\0h\0\x86q\0".repeat(40)].concat();
        // The same long tuple, remembered again and again.
        let long: Vec<u8> = [b"(".to_vec(), b"N".repeat(100_000), b"t".to_vec(), b"q\0".repeat(1000)].concat();
        // A long text, remembered once and repeated.
        let text = [&b"X\x40\x42\x0f\0"[..], &b"a".repeat(1_000_000), b"q\0", &b"h\0".repeat(1000)].concat();
        // A table of many values that becomes another one again and again.
        let table = [b"}(".to_vec(), b"NN".repeat(20_000), b"u".to_vec(), b"}b".repeat(20_000)].concat();
        let lists = [b"]".repeat(100_000), b"a".repeat(99_999)].concat();
        for (body, why) in [
            (nested, "nest too deeply"),
            (lists, "nest too deeply"),
            (doubled, "repeats its values"),
            (long, "repeats its values"),
            (text, "repeats its values"),
            (table, "changes its values"),
            (b"X\xff\xff\xff\xffab".to_vec(), "longer than the pickle"),
            (b"\x8a\xff".to_vec(), "64 bits"),
            (b"t".to_vec(), "marker"),
            (b"h\x07".to_vec(), "memo"),
            (Vec::new(), "empty"),
            (vec![0xee], "op-code"),
        ] {
            let error = read(&pickle(&body)).unwrap_err();
            assert!(error.contains(why), "{why}: {error}");
        }
        assert!(read(b"").is_err());
    }
}
