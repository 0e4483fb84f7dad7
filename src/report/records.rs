//! TFRecord files, of which TensorBoard's event files are one kind: records, each between the checksums of its length
//! and of itself.

use std::io::Write;

/// Writes a record.
pub(super) fn record(out: &mut impl Write, data: &[u8]) -> std::io::Result<()> {
    let length = (data.len() as u64).to_le_bytes();
    out.write_all(&length)?;
    out.write_all(&masked_checksum(&length).to_le_bytes())?;
    out.write_all(data)?;
    out.write_all(&masked_checksum(data).to_le_bytes())
}

/// The records of a file, up to its end or the first damaged one.
pub(super) fn records(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (length, behind) = rest.split_first_chunk::<8>()?;
        let (length_checksum, behind) = behind.split_first_chunk::<4>()?;
        let (data, behind) = behind.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        let (checksum, behind) = behind.split_first_chunk::<4>()?;
        let is_whole = u32::from_le_bytes(*length_checksum) == masked_checksum(length)
            && u32::from_le_bytes(*checksum) == masked_checksum(data);
        rest = behind;
        is_whole.then_some(data)
    })
}

/// TFRecord's checksum, masked because a plain CRC of data that contain their own CRC is problematic.
fn masked_checksum(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The checksum of "123456789" in CRC-32C is e3069283.
    #[test]
    fn checksums_are_masked() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(masked_checksum(b"123456789"), 0xe306_9283u32.rotate_right(15).wrapping_add(0xa282_ead8));
    }
}
