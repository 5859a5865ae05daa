//! Why an OTP was refused: the client gets one answer, the log has the reason, the name of the token and what to do, and no OTP.

use testing::tools::run;
use testing::{client, secs};

use crate::pam::{daemon, expect};
use crate::validation::{NONCE, verifier};

#[test]
fn each_refusal_of_the_validation_server_has_its_reason_in_the_log() {
    let verifier = verifier();
    let otp = |press| verifier.key.otp(1, press);
    let unknown = crate::token::YubiKey::named("vvvvvvvvvvvv").otp(1, 1);
    verifier.status(&otp(1), NONCE);
    verifier.status(&otp(1), "fedcba9876543210");
    verifier.status(&unknown, NONCE);
    // One letter of the block is another one: the check sum is wrong.
    let mut broken = otp(2);
    let last = broken.pop().unwrap();
    broken.push(if last == 'c' { 'b' } else { 'c' });
    verifier.status(&broken, NONCE);
    verifier.ask(&format!("id=1&otp={}&nonce={NONCE}&h=AAAA", otp(3)));
    verifier.ask(&format!("id=99&otp={}&nonce={NONCE}", otp(3)));
    verifier.ask(&format!("id=1&otp={}&nonce=short", otp(3)));
    verifier.tokens.said(&["revoke", "cccccccccccb"], "");
    verifier.status(&otp(4), NONCE);
    for reason in [
        "API client 1 at 127.0.0.1: refused: REPLAYED_OTP: token cccccccccccb: this OTP was used before",
        "refused: BAD_OTP: there is no token vvvvvvvvvvvv here (penstock otp enrol, import)",
        "refused: BAD_OTP: token cccccccccccb: ",
        "refused: BAD_SIGNATURE: it is not signed with the key of this API client",
        "API client 99 at 127.0.0.1: refused: NO_SUCH_CLIENT",
        "a client at 127.0.0.1: refused: MISSING_PARAMETER: a parameter is absent, stands twice, or has no value",
        "refused: BAD_OTP: token cccccccccccb is revoked (if it was found again: penstock otp restore cccccccccccb)",
    ] {
        verifier.server.stderr.wait_for(reason, secs(10));
    }
    let log = verifier.server.stderr.all().join("\n");
    for secret in [otp(1), otp(3), otp(4), broken, unknown] {
        // The access log has the request, which it says it does.
        let lines = log.lines().filter(|line| line.contains("refused")).collect::<Vec<_>>();
        assert!(!lines.iter().any(|line| line.contains(&secret[12..])), "{lines:?}");
    }
}

#[test]
fn a_used_code_a_wrong_code_and_no_token_are_told_apart_in_the_log_only() {
    let daemon = daemon();
    let base32 = "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ";
    for kind in ["hotp", "totp"] {
        daemon.tokens.said(&["enrol", kind, "--user", &format!("of-{kind}"), "--secret-file", "-"], base32);
    }
    let options = format!("socket={}", daemon.socket().display());
    let totp = run("oathtool", &["--totp", "--base32", base32], secs(10));
    let totp = String::from_utf8(totp.stdout).unwrap().trim().to_owned();
    expect(&options, "of-totp", &totp, true);
    expect(&options, "of-totp", &totp, false);
    // The codes 0 and 1 of RFC 4226.
    expect(&options, "of-hotp", "755224", true);
    expect(&options, "of-hotp", "287082", true);
    expect(&options, "of-hotp", "755224", false);
    expect(&options, "of-hotp", "000000", false);
    expect(&options, "carol", "755224", false);
    for reason in [
        "of-totp (penstock-test): refused: REPLAYED_OTP: token of-totp-totp: this OTP was used before: take the next one",
        "of-hotp (penstock-test): refused: REPLAYED_OTP: token of-hotp-hotp: this OTP was used before",
        "of-hotp (penstock-test): refused: token of-hotp-hotp: the code is wrong (if right ones are refused: penstock otp resync of-hotp-hotp)",
        "carol (penstock-test): refused: the user has no token (penstock otp enrol totp --user carol, or give NAME carol)",
    ] {
        daemon.server.stderr.wait_for(reason, secs(10));
    }
    let log = daemon.server.stderr.all().join("\n");
    assert!(!log.contains("755224") && !log.contains(&totp), "{log}");
}

#[test]
fn an_otp_typed_in_capitals_or_on_a_dvorak_keyboard_is_good_and_one_with_a_wrong_check_sum_is_not() {
    let verifier = verifier();
    let otp = |press| verifier.key.otp(1, press);
    assert_eq!(verifier.status(&otp(1).to_uppercase(), NONCE), "OK");
    // What the same keys give on a keyboard that is set to Dvorak.
    let dvorak: String = otp(2)
        .chars()
        .map(|letter| char::from(b"jxe.uidchtnbpygk"["cbdefghijklnrtuv".find(letter).unwrap()]))
        .collect();
    assert_eq!(verifier.status(&dvorak, NONCE), "OK");
    assert_eq!(verifier.status(&otp(2), NONCE), "REPLAYED_REQUEST", "it is the same OTP");
    // Each letter of the block in turn is another one: none of these is good, and none uses the counters up.
    let whole = otp(3);
    for at in 12..44 {
        let mut letters: Vec<char> = whole.chars().collect();
        letters[at] = if letters[at] == 'c' { 'v' } else { 'c' };
        assert_eq!(verifier.status(&String::from_iter(letters), NONCE), "BAD_OTP", "{at}");
    }
    assert_eq!(verifier.status(&whole, NONCE), "OK");
    // The counters go back.
    assert_eq!(verifier.status(&otp(1), NONCE), "REPLAYED_OTP");
    assert_eq!(verifier.status(&verifier.key.otp(0, 200), NONCE), "REPLAYED_OTP");
    let query = format!("/wsapi/2.0/verify?id=1&otp={}&nonce={NONCE}", otp(4));
    assert!(client::get(&verifier.server.address("web"), &query).text().contains("status=OK"));
}
