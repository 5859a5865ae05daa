//! Every word after `server N`, `no` and `ssl_option` has the form that the table says.

use super::command::{NoWord, ServerWord, SslWord};
use super::tests::{run, said};
use super::*;

/// Lines of a file that use a word, and what the translation has of them: a line of the configuration or a part of a note.
/// An empty text: nothing is left of them.
type Example = (&'static str, &'static str);

const fn server(word: ServerWord) -> Example {
    match word {
        ServerWord::Acl => {
            ("acl 2 deny 10.9.0.1\nserver 1 acl 2", "{ address = \"10.0.0.2:80\", acl = \"list-2\" }")
        }
        ServerWord::Address => ("server 2 address 10.0.0.3", "\"10.0.0.3:80\""),
        ServerWord::Port => ("server 1 port 8001", "\"10.0.0.2:8001\""),
        ServerWord::Max => ("server 1 max 5", "{ address = \"10.0.0.2:80\", max-connections = 5 }"),
        ServerWord::Hard => ("server 1 max 5 hard 9", "soft-max-connections = 5, max-connections = 9 }"),
        ServerWord::Blacklist => ("server 1 blacklist 30", "`penstock ctl drain 10.0.0.2:80 --for 30s`"),
        ServerWord::Weight => ("weight\nserver 0 weight 1\nserver 1 weight 3", "weight = 3 }"),
        ServerWord::Prio => ("prio\nserver 1 prio 4", "priority = 4 }"),
    }
}

const fn no(word: NoWord) -> Example {
    match word {
        NoWord::AbortOnError => ("no abort_on_error", ""),
        NoWord::Acl => ("acl 1 deny 10.0.0.9\nclient_acl 1\nno acl 1", ""),
        NoWord::Ascii => ("no ascii", ""),
        NoWord::Block => ("no block", "dropped: pen.cfg:3: Pen has no such command"),
        NoWord::DelayedForward => ("no delayed_forward", "dropped: pen.cfg:3: Pen has no such command"),
        NoWord::Dummy => ("no dummy", ""),
        NoWord::Hash => ("hash\nno hash", ""),
        NoWord::Http => ("http\nno http", ""),
        NoWord::Keepalive => ("keepalive\nno keepalive", ""),
        NoWord::Log => ("log /var/log/pen.log\nno log", ""),
        NoWord::Peek => ("no peek", ""),
        NoWord::Prio => ("prio\nno prio", ""),
        NoWord::RoundRobin => ("roundrobin\nno roundrobin", ""),
        NoWord::Stubborn => ("stubborn\nno stubborn", ""),
        NoWord::TcpNodelay => ("no tcp_nodelay", "changed: pen.cfg:3: TCP_NODELAY is always set"),
        NoWord::Transparent => ("transparent\nno transparent", ""),
        NoWord::WebStats => ("no web_stats", ""),
        NoWord::Weight => {
            ("weight\nserver 1 weight 3\nno weight", ": its weight has no effect in Pen without -W")
        }
    }
}

const fn ssl_option(word: SslWord) -> Example {
    match word {
        SslWord::NoSslv2 => {
            ("ssl_option no_sslv2", "dropped: pen.cfg:3: always so: TLS 1.2 and 1.3 are served")
        }
        SslWord::NoSslv3 => ("ssl_option no_sslv3", "dropped: pen.cfg:3: always so"),
        SslWord::NoTlsv1 => ("ssl_option no_tlsv1", "dropped: pen.cfg:3: always so"),
        SslWord::NoTlsv11 => ("ssl_option no_tlsv1.1", "dropped: pen.cfg:3: always so"),
        SslWord::NoTlsv12 => ("ssl_option no_tlsv1.2", "min-version = \"1.3\""),
        SslWord::ServerPreference => ("ssl_option cipher_server_preference", "cipher-order = \"server\""),
    }
}

const LINE: &str = "-E /etc/pen/a.pem -F pen.cfg 80";

/// The lines before those of an example.
const SERVERS: &str = "server 0 address 10.0.0.1 port 80\nserver 1 address 10.0.0.2 port 80\n";

/// The configuration without comments.
fn keys_of(toml: &str) -> String {
    toml.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
}

fn check(word: &str, (file, gives): Example) -> Result<(), String> {
    if !file.contains(word) {
        return Err(format!("{word} is not in its example"));
    }
    let result = run(LINE, &format!("{SERVERS}{file}"), keys::of_this_version);
    let all = said(&result);
    let translation = result.map_err(|faults| format!("{word}: {faults}"))?;
    tests::parse(&translation.toml);
    if let Some(lacks) = translation.missing().next() {
        return Err(format!("{word}: {lacks}"));
    }
    let plain = run(LINE, SERVERS, keys::of_this_version).map_err(|faults| faults.to_string())?;
    match gives {
        // As if the lines were not there.
        "" if keys_of(&translation.toml) == keys_of(&plain.toml) => Ok(()),
        "" => Err(format!("{word}: {file:?} leaves something:\n{}", translation.toml)),
        gives if all.contains(gives) => Ok(()),
        gives => Err(format!("{word}: no {gives:?} in\n{all}")),
    }
}

#[test]
fn every_word_of_a_server_of_no_and_of_ssl_option_has_its_form() {
    let servers = ServerWord::ALL.iter().map(|word| check(word.as_str(), server(*word)));
    let no = NoWord::ALL.iter().map(|word| check(&format!("no {word}"), no(*word)));
    let ssl = SslWord::ALL.iter().map(|word| check(word.as_str(), ssl_option(*word)));
    let wrong: Vec<_> = servers.chain(no).chain(ssl).filter_map(Result::err).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_page_names_every_word_of_a_server_and_of_ssl_option() {
    let page = inventory::commands();
    let row = |start: &str| page.lines().find(|line| line.starts_with(start)).unwrap();
    let (server, ssl) = (row("| `server "), row("| `ssl_option "));
    for (row, word) in ServerWord::WORDS
        .iter()
        .map(|word| (server, word))
        .chain(SslWord::WORDS.iter().map(|word| (ssl, word)))
    {
        assert!(row.contains(&format!("`{word}`")), "{word}: {row}");
    }
}
