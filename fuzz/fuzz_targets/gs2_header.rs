//! The GS2 header, the first message of GS2-KRB5 around it, and the commands of SMTP that carry both: what is read has one
//! spelling, and is written back in it.
#![no_main]

use access::sasl::gs2::Header;
use access::sasl::{krb5, smtp};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|message: &[u8]| {
    if let Ok((header, length)) = Header::parse(message) {
        assert_eq!(header.encode().as_bytes(), &message[..length], "there is no second spelling");
    }
    if let Ok(first) = krb5::First::parse(message) {
        let again =
            krb5::First::encode(&first.header, &first.token).expect("a token that was read is written");
        assert_eq!(again, message);
    }
    let _ = smtp::command(message);
    let _ = smtp::response(message);
});
