//! Settings of a host in the format of `ssh -G`, for people and for the test that compares them with `ssh -G`.

use std::fmt;

use super::algorithms::{KnownAlgorithms, List};
use super::evaluate::{Evaluation, Found};
use super::expand::{path, texts, variables};
use super::fault::Fault;
use super::forward::{End, ForwardKind};
use super::jump::Jump;
use super::keyword::{Keyword, Shape};
use super::setting::Value;
use super::tokens::Tokens;

/// Writes the format of `ssh -G`.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => f.write_str(word),
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
            Self::Words(words) => f.write_str(&words.join(" ")),
            Self::Jump(jump) => write!(f, "{jump}"),
            Self::Forward(forward) => write!(f, "{forward}"),
        }
    }
}

/// Lines in the format of `ssh -G`. A value that cannot be expanded is a fault.
pub(super) fn lines(
    from: &Evaluation<'_>,
    known: &KnownAlgorithms,
    host: &str,
    tokens: &Tokens,
    faults: &mut Vec<Fault>,
) -> Vec<(&'static str, String)> {
    let mut lines = vec![("host", from.asked.host.clone())];
    for keyword in Keyword::ALL {
        let mut add = |text: String| lines.push((keyword.name(), text));
        let first = from.first.get(keyword);
        let mut expanded = |text: Result<String, String>, found: &Found| {
            let fault = |why| Fault {
                place: found.place.clone(),
                what: format!("{}: {why}", keyword.name()),
                hint: None,
            };
            text.map_err(|why| faults.push(fault(why))).ok()
        };
        match (keyword, first) {
            (Keyword::HostName, _) => add(host.to_owned()),
            (Keyword::User, _) => add(tokens.user.clone()),
            (Keyword::RekeyLimit, _) => {
                let part = |keyword| from.number(keyword).unwrap_or_default();
                add(format!("{} {}", part(Keyword::RekeyLimit), part(Keyword::RekeyInterval)));
            }
            (Keyword::ForwardAgent, _) if from.first.contains_key(&Keyword::ForwardAgentSocket) => {
                let found = &from.first[&Keyword::ForwardAgentSocket];
                if let Some(path) = expanded(path(&found.value.to_string(), tokens, from), found) {
                    add(path);
                }
            }
            (
                Keyword::ForwardAgentSocket | Keyword::RekeyInterval | Keyword::IpQos | Keyword::EscapeChar,
                _,
            ) => {}
            (Keyword::SetEnv, found) => variables(found).into_iter().for_each(add),
            (Keyword::SendEnv | Keyword::IdentityFile | Keyword::CertificateFile, _) => {
                texts(from.all.get(keyword)).into_iter().for_each(add);
            }
            (Keyword::LocalForward | Keyword::RemoteForward | Keyword::DynamicForward, _) => {
                if from.text(Keyword::ClearAllForwardings) == Some("yes") {
                    continue;
                }
                for found in from.all.get(keyword).into_iter().flatten() {
                    let Value::Forward(forward) = &found.value else { continue };
                    let mut forward = forward.clone();
                    for end in std::iter::once(&mut forward.listen).chain(&mut forward.connect) {
                        if let End::Path(path) = end
                            && let Some(text) = expanded(tokens.expand(path), found)
                        {
                            *path = text;
                        }
                    }
                    match (keyword.shape(), &forward.connect) {
                        (Shape::Forward(ForwardKind::Remote), None) => add(format!("{forward} [socks]:0")),
                        _ => add(forward.to_string()),
                    }
                }
            }
            (Keyword::UpdateHostKeys, found) => add(update_host_keys(from, found)),
            (Keyword::UserKnownHostsFile, found) => {
                let default = || ["~/.ssh/known_hosts", "~/.ssh/known_hosts2"].map(str::to_owned).to_vec();
                let files = found.map_or_else(default, |found| words(&found.value));
                let none = Found { value: Value::Word("none"), place: None };
                let of = |file: &String| match files.len() == 1 && file.eq_ignore_ascii_case("none") {
                    true => Some("none".to_owned()),
                    false => expanded(path(file, tokens, from), found.unwrap_or(&none)),
                };
                let files: Vec<String> = files.iter().filter_map(of).collect();
                add(files.join(" "));
            }
            (Keyword::GlobalKnownHostsFile, None) => {
                add("/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2".to_owned());
            }
            (Keyword::ProxyCommand, Some(_)) if from.jumps().is_some() => {}
            (Keyword::ProxyJump, Some(Found { value: Value::Jump(Jump::None), .. })) => {}
            (Keyword::HostKeyAlias, Some(found)) => add(found.value.to_string().to_ascii_lowercase()),
            (Keyword::ControlPath | Keyword::IdentityAgent, Some(found)) if !is_none(keyword, found) => {
                if let Some(path) = expanded(path(&found.value.to_string(), tokens, from), found) {
                    add(path);
                }
            }
            (Keyword::RemoteCommand, Some(found)) if !is_none(keyword, found) => {
                if let Some(command) = expanded(tokens.expand(&found.value.to_string()), found) {
                    add(command);
                }
            }
            (_, Some(found)) if is_none(keyword, found) => {}
            (_, found) => {
                if let Some(text) = simple(*keyword, found, known) {
                    add(text);
                }
            }
        }
    }
    lines
}

/// True if `none` unsets the setting, so that no line is written.
fn is_none(keyword: &Keyword, found: &Found) -> bool {
    let clears = matches!(
        keyword,
        Keyword::LocalCommand
            | Keyword::RemoteCommand
            | Keyword::ProxyCommand
            | Keyword::ControlPath
            | Keyword::RevokedHostKeys
            | Keyword::Pkcs11Provider
            | Keyword::SecurityKeyProvider
            | Keyword::KnownHostsCommand
    );
    clears && found.value.to_string().eq_ignore_ascii_case("none")
}

fn simple(keyword: Keyword, found: Option<&Found>, known: &KnownAlgorithms) -> Option<String> {
    if let Shape::Algorithms(list) = keyword.shape() {
        return Some(algorithms(list, found, known));
    }
    match found {
        None => keyword.default().map(str::to_owned),
        Some(found) => Some(found.value.to_string()),
    }
}

fn algorithms(list: List, found: Option<&Found>, known: &KnownAlgorithms) -> String {
    let names = match found.map(|found| &found.value) {
        Some(Value::Text(text)) => known.assemble(list, text).unwrap_or_default(),
        _ => known.of(list).default.clone(),
    };
    names.join(",")
}

/// On by default, unless the keys come from other sources than the known-hosts file of the user.
fn update_host_keys(from: &Evaluation<'_>, found: Option<&Found>) -> String {
    let yes = |yes| if yes { "true" } else { "false" }.to_owned();
    let Some(found) = found else {
        let plain_dns = matches!(from.text(Keyword::VerifyHostKeyDns), None | Some("false"));
        let files = from.first.get(&Keyword::UserKnownHostsFile).map(|found| words(&found.value));
        let own = files.is_none_or(|files| files == ["~/.ssh/known_hosts"]);
        return yes(plain_dns && own);
    };
    let set = |keyword| from.text(keyword).filter(|text| !text.eq_ignore_ascii_case("none"));
    let nobody_to_ask = set(Keyword::RemoteCommand).is_some()
        || from.text(Keyword::RequestTty) == Some("false")
        || (from.text(Keyword::ControlPersist).is_some_and(|text| text != "no")
            && set(Keyword::ControlPath).is_some())
        || matches!(from.text(Keyword::LogLevel), Some("QUIET" | "FATAL" | "ERROR"));
    match found.value.to_string().as_str() {
        "ask" if nobody_to_ask => yes(false),
        text => text.to_owned(),
    }
}

fn words(value: &Value) -> Vec<String> {
    match value {
        Value::Words(words) => words.clone(),
        other => vec![other.to_string()],
    }
}
