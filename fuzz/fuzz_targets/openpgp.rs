//! Packets of OpenPGP keys: no form for the DNS that is made of them has a user ID of another address, and each can be read.
#![no_main]

use access::keys::openpgp::{self, Address};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| {
    let Ok(keys) = openpgp::read(file) else { return };
    for key in keys.iter().take(4) {
        for address in key.addresses().iter().take(4) {
            let Ok(minimal) = key.minimal(address, 1_700_000_000) else { continue };
            let again = openpgp::read(&minimal).expect("what is published is a key");
            assert_eq!(again.len(), 1);
            assert_eq!(again[0].fingerprint(), key.fingerprint());
        }
    }
    if let Ok(text) = std::str::from_utf8(file)
        && let Ok(address) = Address::parse(text)
    {
        let _ = address.openpgpkey_owners();
        let _ = address.cert_owner();
    }
});
