//! SHA-256 from the library that TLS uses anyway (aws-lc-rs).

use aws_lc_rs::digest::{Context, SHA256};

pub(crate) type Digest = [u8; 32];

/// Hashes the concatenation of all parts.
pub(super) fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Digest {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(part);
    }
    let mut digest = Digest::default();
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_fips_180() {
        let hex: String = digest([&b"a"[..], b"bc"]).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
