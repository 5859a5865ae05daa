//! The `otpauth` URI that authenticator apps scan as a QR code.

use super::base32;
use super::oath::{Form, Shared};

/// What changes from code to code.
pub use super::import::By;

/// The URI of a token. `issuer` is who verifies the codes.
#[must_use]
pub fn otpauth(
    issuer: &str,
    account: &str,
    form: Form,
    by: By,
    secret: &Shared,
) -> zeroize::Zeroizing<String> {
    let (kind, moving) = match by {
        By::Counter(next) => ("hotp", format!("&counter={next}")),
        By::Time(period) => ("totp", format!("&period={period}")),
    };
    let (issuer, account) = (escaped(issuer), escaped(account));
    let (secret, digits) = (base32::encode(secret.bytes()), form.digits.count());
    zeroize::Zeroizing::new(format!(
        "otpauth://{kind}/{issuer}:{account}?secret={secret}&issuer={issuer}&algorithm={}&digits={digits}{moving}",
        form.algorithm
    ))
}

fn escaped(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::oath::{Algorithm, Digits};
    use super::*;

    #[test]
    fn apps_get_all_that_they_need() {
        let secret = Shared::new(b"12345678901234567890".to_vec()).unwrap();
        let form = Form { algorithm: Algorithm::Sha256, digits: Digits::new(8).unwrap() };
        assert_eq!(
            *otpauth("My site", "alice@example.org", form, By::Time(30), &secret),
            "otpauth://totp/My%20site:alice%40example.org?secret=GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ&issuer=My%20site&algorithm=SHA256&digits=8&period=30"
        );
        let form = Form { algorithm: Algorithm::Sha1, digits: Digits::SIX };
        assert!(
            otpauth("x", "y", form, By::Counter(5), &secret).ends_with("&algorithm=SHA1&digits=6&counter=5")
        );
    }
}
