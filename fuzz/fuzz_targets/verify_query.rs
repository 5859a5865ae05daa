//! The query of the validation protocol: what is signed is what is read, and an answer repeats only what is safe in its lines.
#![no_main]

use access::otp::query::Query;
use access::otp::sync;
use access::otp::validation::{Answer, Status, Unsigned, read};
use libfuzzer_sys::fuzz_target;

const KEY: &[u8] = b"a key that no input has";

fuzz_target!(|query: &[u8]| {
    let Ok(text) = std::str::from_utf8(query) else { return };
    let (echo, asked) = read(text);
    let answer = Answer::only(Status::BadOtp).text(&echo, 1_700_000_000_000, Some(KEY));
    // h, t, otp, nonce, status: a value with an end of line in it would be one more.
    let lines = 3 + usize::from(echo.otp.is_some()) + usize::from(echo.nonce.is_some());
    assert_eq!(answer.trim_end().lines().count(), lines, "{answer}");
    if let Ok(asked) = asked {
        assert!(asked.prove(Some(KEY), Unsigned::Refused).is_err(), "the key is not known");
    }
    if let Some(query) = Query::read(text) {
        let _ = query.signed();
    }
    let _ = sync::read(text);
    let _ = sync::read_answer(text);
});
