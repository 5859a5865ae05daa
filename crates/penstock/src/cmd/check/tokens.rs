//! Users who cannot log in, because `log-in` of `[otp]` asks for a one-time password and they have no token.

use access::otp::ledger::Ledger;
use access::otp::token::Standing;
use access::users::{LARGEST, Users};
use config::MachineFault;
use config::types::LogIn;
use credentials::Place;

use crate::output::plain;

/// Users that are named.
const NAMED: usize = 5;

/// Reads the store and the file of users, and changes nothing.
pub(super) fn missing(config: &config::Config) -> Option<MachineFault> {
    let otp = config.otp.as_ref()?;
    let rule = otp.log_in.filter(|rule| matches!(rule, LogIn::Otp | LogIn::Both))?;
    // A store or a file that cannot be read has a fault of its own.
    let text = String::from_utf8(sys::file::read(otp.users.as_ref()?, LARGEST).ok()?).ok()?;
    let users = Users::parse(&text).ok()?;
    let place = Place { directory: otp.store.clone(), key_file: otp.key_file.clone() };
    let ledger = credentials::peek(&place).ok()?;
    let may_log_in = users.iter().filter(|user| user.revoked.is_none());
    let without: Vec<&str> =
        may_log_in.map(|user| user.name.as_str()).filter(|name| !has_token(&ledger, name)).collect();
    let first = without.first()?;
    let mut named = without.iter().take(NAMED).map(|name| plain(name)).collect::<Vec<_>>().join(", ");
    if without.len() > NAMED {
        named += &format!(" and {} more", without.len() - NAMED);
    }
    let message = format!(
        "log-in = \"{rule}\" asks for a one-time password, and these users have no token that may be used: {named}"
    );
    let hint = format!("penstock otp enrol totp --user {}", plain(first));
    Some(MachineFault { key: "otp.log-in".to_owned(), message, hint: Some(hint) })
}

fn has_token(ledger: &Ledger, user: &str) -> bool {
    ledger.of_owner(user).any(|token| token.standing == Standing::Active)
}
