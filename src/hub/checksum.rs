//! Checksums of the hub: the ETag of a file is a checksum of its contents.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// Whether a file's contents match an ETag; true if the ETag is no checksum. For large files it is their SHA-256. For
/// others it is Git's SHA-1, of their length and contents; some mirrors give the SHA-1 of the contents alone.
pub(super) fn fits(path: &Path, etag: &str) -> io::Result<bool> {
    let is_hex = etag.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is = |found: String| found.eq_ignore_ascii_case(etag);
    Ok(match etag.len() {
        64 if is_hex => is(format!("{:x}", hashed(path, |_| Sha256::new())?)),
        40 if is_hex => {
            let of_git = |length| Sha1::new_with_prefix(format!("blob {length}\0"));
            is(format!("{:x}", hashed(path, of_git)?)) || is(format!("{:x}", hashed(path, |_| Sha1::new())?))
        }
        _ => true,
    })
}

/// The checksum of a file, from a beginning that may depend on its length.
fn hashed<D: Digest>(path: &Path, begin: impl FnOnce(u64) -> D) -> io::Result<sha2::digest::Output<D>> {
    let mut file = File::open(path)?;
    let mut hash = begin(file.metadata()?.len());
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hash.finalize()),
            Ok(read) => hash.update(buffer.get(..read).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sums are those of `sha256sum`, `git hash-object` and `sha1sum`.
    #[test]
    fn contents_fit_their_checksum_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "hello\n").unwrap();
        let sums = [
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03",
            "ce013625030ba8dba906f756967f9e9ca394464a",
            "f572d396fae9206628714fb2ce00f72e94f2258f",
        ];
        for sum in sums {
            assert!(fits(&path, sum).unwrap(), "{sum}");
            assert!(fits(&path, &sum.to_uppercase()).unwrap(), "{sum}");
        }
        std::fs::write(&path, "hellO\n").unwrap();
        for sum in sums {
            assert!(!fits(&path, sum).unwrap(), "{sum}");
        }
        // Those of files that were sent in parts are no checksums of them.
        for etag in ["d41d8cd98f00b204e9800998ecf8427e-2", &"g".repeat(64), "abc"] {
            assert!(fits(&path, etag).unwrap(), "{etag}");
        }
        fits(&folder.path().join("missing"), sums[0]).unwrap_err();
    }
}
