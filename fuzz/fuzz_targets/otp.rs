//! One-time passwords as they are typed: of YubiKeys in any keyboard layout, codes of HOTP and TOTP, and files to import.
#![no_main]

use access::otp::import::{self, Format};
use access::otp::modhex;
use access::otp::oath::Code;
use access::otp::yubico::{Otp, Secret};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|typed: &[u8]| {
    let Ok(text) = std::str::from_utf8(typed) else { return };
    if let Ok(otp) = Otp::read(text) {
        let secret = Secret::new([1; 16], [2; 6]);
        assert!(modhex::decode(&otp.name).is_some(), "the name is modhex");
        if let Ok(press) = secret.open(&otp) {
            let again = Otp::read(&secret.typed_by(&otp.name, press)).expect("our own OTP is read");
            assert_eq!(again.name, otp.name);
            assert!(secret.open(&again).is_ok());
        }
    }
    let _ = Code::read(text);
    if let Some(bytes) = modhex::decode(text) {
        assert_eq!(modhex::decode(&modhex::encode(&bytes)), Some(bytes));
    }
    for format in Format::ALL {
        let _ = import::read(*format, text);
    }
});
