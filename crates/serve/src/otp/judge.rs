//! What the store says of what a user typed, for all doors where users are known by name.

use access::otp::ledger::{Accepted, Ledger, Record};
use access::otp::token::{Refusal, Token};
use access::otp::yubico::Otp;
use serde::Deserialize;

/// Judges what a user typed. Without keys the store says which tokens are theirs.
pub(super) fn judge(
    ledger: &mut Ledger,
    user: &str,
    typed: &str,
    keys: Option<&Keys>,
    nonce: &str,
    now: u64,
) -> Result<(Accepted, Record), Refusal> {
    let Some(keys) = keys else {
        if !ledger.of_owner(user).any(Token::makes_otps) {
            return Err(Refusal::NoToken);
        }
        return ledger.prove(user, typed, nonce, now);
    };
    let otp = Otp::read(typed).map_err(|_| Refusal::NotAnOtp)?;
    let owner = ledger.token(&otp.name).and_then(|token| token.owner.as_deref());
    let is_of_another = keys.of == KeysOf::User && owner.is_some_and(|owner| owner != user);
    match keys.names.contains(&otp.name) && !is_of_another {
        true => ledger.press(&otp, nonce, now),
        false => Err(Refusal::NotTheirs { id: otp.name }),
    }
}

/// Keys of which the OTP must have one.
pub(super) struct Keys {
    pub(super) names: Vec<String>,
    pub(super) of: KeysOf,
}

/// Who says which keys a user has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum KeysOf {
    /// The operator of the machine.
    #[default]
    Operator,
    /// The user: a key that the store gives to another user is not theirs.
    User,
}
