//! `penstock otp list`.

use access::otp::ledger::Ledger;
use access::otp::token::{Kind, Standing, Token};
use clap::Args;
use credentials::Store;
use serde_json::json;
use text::table;

use crate::output::{Failure, plain, print, print_json};

/// List tokens: whose they are, their counters, and when they were used last
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Only tokens of this user
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

pub(super) fn run(store: &Store, arguments: &Arguments) -> Result<(), Failure> {
    let tokens = of(store.ledger(), arguments.user.as_deref());
    if arguments.json {
        let list: Vec<_> = tokens.iter().map(|token| json(token)).collect();
        return print_json(&format!("{:#}\n", json!({ "tokens": list })));
    }
    if tokens.is_empty() {
        return print("no tokens yet: penstock otp enrol, or penstock otp import\n");
    }
    let head = ["token", "user", "kind", "state", "counter", "enrolled", "used"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for token in tokens {
        let state = match token.standing {
            Standing::Active => "active",
            Standing::Revoked => "revoked",
        };
        let user = token.owner.as_deref().map_or("-".to_owned(), plain);
        let (enrolled, used) = (time(token.enrolled), token.used.map_or("never".to_owned(), time));
        let row = [
            plain(&token.id),
            user,
            token.kind.word().to_owned(),
            state.to_owned(),
            counter(token),
            enrolled,
            used,
        ];
        rows.push(row.to_vec());
    }
    print(&table::of(&rows))
}

fn of<'a>(ledger: &'a Ledger, user: Option<&str>) -> Vec<&'a Token> {
    match user {
        Some(user) => ledger.of_owner(user).collect(),
        None => ledger.tokens().collect(),
    }
}

fn counter(token: &Token) -> String {
    match &token.kind {
        Kind::Yubico { last } => {
            last.as_ref().map_or("-".to_owned(), |last| format!("{}/{}", last.session, last.press))
        }
        Kind::Hotp { next, .. } => next.to_string(),
        Kind::Totp { last, .. } => last.map_or("-".to_owned(), |last| last.to_string()),
        Kind::Challenge(_) => "-".to_owned(),
    }
}

fn json(token: &Token) -> serde_json::Value {
    let standing = match token.standing {
        Standing::Active => "active",
        Standing::Revoked => "revoked",
    };
    let common = json!({
        "token": token.id,
        "user": token.owner,
        "kind": token.kind.word(),
        "state": standing,
        "enrolled": token.enrolled,
        "used": token.used,
    });
    let own = match &token.kind {
        Kind::Yubico { last } => json!({
            "session": last.as_ref().map(|last| last.session),
            "press": last.as_ref().map(|last| last.press),
        }),
        Kind::Hotp { form, next } => json!({
            "next": next, "digits": form.digits.count(), "algorithm": form.algorithm.as_str(),
        }),
        Kind::Totp { form, period, last, drift } => json!({
            "period": period, "last": last, "drift": drift,
            "digits": form.digits.count(), "algorithm": form.algorithm.as_str(),
        }),
        Kind::Challenge(exchange) => json!({
            "slot": u8::from(exchange.slot), "serial": exchange.serial,
        }),
    };
    let (serde_json::Value::Object(mut all), serde_json::Value::Object(own)) = (common, own) else {
        return serde_json::Value::Null;
    };
    all.extend(own);
    all.into()
}

fn time(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    time.map_or_else(|| seconds.to_string(), |time| time.strftime("%Y-%m-%d %H:%M").to_string())
}
