//! What of the typed text is the password, and what the OTP.

/// Letters of the encrypted part of a YubiKey's OTP.
const BLOCK: usize = 32;

/// The parts of what was typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Typed<'a> {
    /// What stands before the OTP, for other modules.
    pub(crate) password: Option<&'a str>,
    pub(crate) otp: &'a str,
}

/// Splits a text: an OTP of a YubiKey at its end is taken off, if something stands before it.
pub(crate) fn split(text: &str, name_length: usize) -> Typed<'_> {
    let whole = Typed { password: None, otp: text };
    let Some(at) = text.len().checked_sub(BLOCK + name_length) else { return whole };
    let Some((password, otp)) = text.split_at_checked(at) else { return whole };
    // Modhex, also as the Dvorak layout has it.
    let is_letter = |byte: u8| b"cbdefghijklnrtuvjxpygk.>".contains(&byte.to_ascii_lowercase());
    match !password.is_empty() && otp.bytes().all(is_letter) {
        true => Typed { password: Some(password), otp },
        false => whole,
    }
}
