use std::path::Path;

use config::{Environment, Source};

use super::command::Command;
use super::inventory;
use super::option::Opt;
use super::row::Row;
use super::*;

fn all_here(_: NewKey) -> State {
    State::Here
}

/// Translates a command line; `~` is a blank inside a word, and `/etc/pen.cfg` has one command.
pub(super) fn run(line: &str, file: &str, keys: fn(NewKey) -> State) -> Result<Translation, Faults> {
    let read = |path: &Path| match path.to_str() {
        Some("/etc/pen.cfg") => Ok("# a comment\nblacklist 7\n".to_owned()),
        Some("/here/pen.cfg") => Ok(file.to_owned()),
        _ => Err("no such file".to_owned()),
    };
    let exists = |path: &Path| !path.starts_with("/none");
    let services = "http 80/tcp\ndomain 53/udp";
    let outside = Outside { services, directory: Path::new("/here"), read: &read, exists: &exists };
    let words: Vec<_> = line.split_whitespace().map(|word| word.replace('~', " ")).collect();
    translate(&words, &outside, keys)
}

fn good(line: &str) -> Translation {
    run(line, "", keys::of_this_version).unwrap_or_else(|faults| panic!("{line}: {faults}"))
}

pub(super) fn parse(toml: &str) -> config::Config {
    let source = Source { name: "pen".into(), text: toml.to_owned() };
    match config::load(&source, &Environment::default()) {
        Ok(loaded) => loaded.config,
        Err(faults) => panic!("{toml}\n{}", faults.render()),
    }
}

/// What the translation says: the configuration and the notes.
pub(super) fn said(result: &Result<Translation, Faults>) -> String {
    match result {
        Ok(Translation { toml, notes }) => {
            let notes: Vec<_> = notes.iter().map(ToString::to_string).collect();
            format!("{toml}{}\n", notes.join("\n"))
        }
        Err(faults) => faults.to_string(),
    }
}

#[test]
fn every_option_and_command_has_the_form_that_the_table_says() {
    let options =
        Opt::ALL.iter().map(|option| (format!("-{option}"), option.row(), option.row().example.to_owned()));
    let commands = Command::ALL.iter().map(|command| {
        let Row { example, .. } = command.row();
        let line = match example.contains("listen ") {
            true => "-F pen.cfg".to_owned(),
            false if example.contains("dsr_if") => "-F pen.cfg 192.0.2.10:443 10.0.0.1".to_owned(),
            false => "-E /etc/pen/a.pem -F pen.cfg 443 10.0.0.1".to_owned(),
        };
        (command.to_string(), command.row(), line)
    });
    let mut wrong = Vec::new();
    for (word, row, line) in options.chain(commands) {
        let result = run(&line, row.example, all_here);
        let said = said(&result);
        if !said.contains(row.gives) {
            wrong.push(format!("{word}: {line} gives no {:?} but\n{said}", row.gives));
        }
        if !row.example.contains(word.trim_start_matches('-')) {
            wrong.push(format!("{word} is not in its example"));
        }
        if let Ok(translation) = run(&line, row.example, keys::of_this_version) {
            parse(&translation.toml);
            let lacks = translation.missing().map(|note| format!("{word}: {note}"));
            // A certificate and its authority are named by files, which only the user can say.
            wrong.extend(lacks.filter(|_| !["-K", "-R"].contains(&word.as_str())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn page_has_the_tables() {
    #![allow(clippy::disallowed_methods, reason = "this test reads and writes the page")]
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/pen.md");
    let mut page = std::fs::read_to_string(path).unwrap();
    let parts = [("options", inventory::options()), ("commands", inventory::commands())];
    for (name, table) in parts {
        let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
        let (before, rest) = page.split_once(&begin).unwrap();
        let (written, after) = rest.split_once(&end).unwrap();
        if written != table {
            assert!(
                std::env::var_os("UPDATE_GOLDEN").is_some(),
                "UPDATE_GOLDEN=1 writes the table of {name} anew"
            );
            page = format!("{before}{begin}{table}{end}{after}");
            std::fs::write(path, &page).unwrap();
        }
    }
}

#[test]
fn what_stays_and_is_worth_knowing_is_a_note_too() {
    let text = "of all clients together; one more waits until another one ends, as in Pen";
    let notes = |line: &str, file: &str| {
        let translation =
            run(line, file, keys::of_this_version).unwrap_or_else(|faults| panic!("{line}: {faults}"));
        let comments: String = translation.toml.lines().map(|line| line.trim_start_matches('#')).collect();
        for note in &translation.notes {
            assert!(comments.contains(&note.text[..note.text.len().min(40)]), "{note}\n{}", translation.toml);
        }
        translation.notes.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let has =
        |notes: &[String], note: &str| assert!(notes.iter().any(|one| one.starts_with(note)), "{notes:#?}");
    has(&notes("-x 2000 80 10.0.0.1", ""), &format!("same: -x 2000: {text}"));
    assert!(!notes("80 10.0.0.1", "").iter().any(|note| note.contains(text)), "Pen's own limit");
    let file = notes("-F pen.cfg 80 10.0.0.1", "transparent\nkeepalive\n");
    has(&file, "same: pen.cfg:1: as in Pen, what servers answer must be routed back");
    has(&file, "same: pen.cfg:2: the time of the kernel");
    has(&notes("-F pen.cfg 192.0.2.10:443 10.0.0.1", "dsr_if eth1"), "same: pen.cfg:1: Pen checks no server");
}

#[test]
fn what_a_file_says_of_a_server_of_the_command_line_is_not_lost_silently() {
    let notes = |file: &str| {
        let translation = run("-F pen.cfg 80 10.0.0.1:8000:10 10.0.0.2:8000", file, keys::of_this_version);
        let notes = translation.unwrap_or_else(|faults| panic!("{faults}")).notes;
        notes
            .iter()
            .map(ToString::to_string)
            .filter(|note| note.contains("this argument"))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        notes("server 1 max 20\nserver 1 hard 30\nserver 0 acl 2\n"),
        [
            "changed: 10.0.0.2:8000: this argument replaces what commands say of server 1, but for its access list, as in Pen; \
          Pen takes what a file says of it (-F) only after a SIGHUP"
        ]
    );
    assert_eq!(notes("server 0 acl 2\n"), [""; 0]);
    let wrong =
        run("-O acl~12~permit~10.0.0.1 80 10.0.0.1", "", keys::of_this_version).unwrap_err().to_string();
    assert!(wrong.contains("\"12\" is no number of an access list: Pen has 0 to 9"), "{wrong}");
}

#[test]
fn the_simplest_pen_is_sticky_and_fails_over() {
    let translation = good("80 10.0.0.1:8000 10.0.0.2");
    assert_eq!(translation.missing().count(), 0);
    let config = parse(&translation.toml);
    assert_eq!(config.pools[0].backends[1].address.to_string(), "10.0.0.2:80");
    assert_eq!(config.pools[0].retries, 1);
    assert_eq!(config.pools[0].balance.as_str(), "sticky");
    assert_eq!(config.pools[0].passive.failures, 1);
    assert_eq!(config.pools[0].passive.ejection.as_secs(), 30);
    assert_eq!(config.pools[0].timeouts.connect.as_secs(), 3);
}

#[test]
fn arguments_are_read_as_getopt_reads_them() {
    let plain = good("-r -b 7 80 10.0.0.1 10.0.0.2");
    for line in ["-rb7 80 10.0.0.1 10.0.0.2", "80 10.0.0.1 10.0.0.2 -b 7 -r", "-rb 7 -- 80 10.0.0.1 10.0.0.2"]
    {
        let other = good(line);
        let code =
            |text: &str| text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
        assert_eq!(code(&other.toml), code(&plain.toml), "{line}");
    }
}

#[test]
fn every_fault_of_a_command_line_is_told_at_once() {
    let result = run("-b x -t 0 -k 80 www:1:2:3:4:5:6 -T", "", keys::of_this_version);
    let faults = result.unwrap_err().to_string();
    for part in [
        "-b x: \"x\" is not a number",
        "-t 0:",
        "-k: Pen has no option -k",
        "www:1:2",
        "-T needs an argument",
    ] {
        assert!(faults.contains(part), "{part}: {faults}");
    }
    for (line, part) in [
        ("", "nothing says where to listen"),
        ("80", "it has no server"),
        ("80 0.0.0.0:80", "it has no server"),
        ("www:80 a", "is a name"),
        ("-F /none 80 a", "/none cannot be read: no such file"),
        ("-O no~acl 80 a", "needs the number of a list"),
    ] {
        let faults = run(line, "", keys::of_this_version).unwrap_err().to_string();
        assert!(faults.contains(part), "{line}: {faults}");
    }
}

#[test]
fn faults_of_a_file_name_their_line() {
    let file = "blacklist 5\n\nserver 0 address 10.0.0.1 port x\nacl 0 allow 10.0.0.1\ninclude pen.cfg\n";
    let faults = run("-F pen.cfg 80 a", file, keys::of_this_version).unwrap_err().to_string();
    for part in
        ["error: pen.cfg:3: \"x\" is no port", "error: pen.cfg:4: \"allow\"", "include each other too deeply"]
    {
        assert!(faults.contains(part), "{part}: {faults}");
    }
    let said = said(&run("-F pen.cfg 80 a", "blaklist 5\n", keys::of_this_version));
    assert!(said.contains("dropped: pen.cfg:1: \"blaklist\" is no command of Pen"), "{said}");
    assert!(said.contains("did you mean \"blacklist\"?"), "{said}");
}

#[test]
fn limits_are_those_that_pen_really_has() {
    for (server, given) in [
        ("a:80:5", "max-connections = 5 }"),
        ("a:80:5:3", "max-connections = 5 }"),
        ("a:80:5:9", "soft-max-connections = 5, max-connections = 9 }"),
        ("a:80:0:9", "backends = [\"a:80\"]"),
    ] {
        let said = said(&run(&format!("80 {server}"), "", all_here));
        assert!(said.contains(given), "{server}: {said}");
        assert_eq!(said.contains("queue = 0"), given.contains("max"), "{said}");
    }
    let said = said(&run("-r 80 a:80:5:9", "", all_here));
    assert!(said.contains("{ address = \"a:80\", max-connections = 5 }"), "{said}");
}

#[test]
fn weights_count_only_where_pen_uses_them() {
    let said_of = |line: &str| said(&run(line, "", all_here));
    assert!(said_of("80 a:80:0:0:7").contains("weight has no effect in Pen without -W"));
    assert!(said_of("-W 80 a b").contains("then Pen serves no client"));
    assert!(said_of("-W 80 a:80:0:0:2000 b:80:0:0:1 c").contains("weight = 1000"));
    assert!(said_of("80 a:80 a:80 b").contains("{ address = \"a:80\", weight = 2 }"));
}

#[test]
fn lists_end_with_the_opposite_of_their_last_entry() {
    let file = "acl 1 permit 10.0.0.0 255.0.0.0\nacl 1 deny fd00::/8\nacl 2 deny 10.9.0.0 255.255.0.0\nclient_acl 1\n\
                server 0 acl 2\n";
    let said = said(&run("-F pen.cfg 80 10.0.0.1", file, all_here));
    for part in [
        "[acl.list-1]\nentries = [\"permit 10.0.0.0/8\", \"deny fd00::/8\"]",
        "default = \"permit\"",
        "acl = \"list-1\"",
        "{ address = \"10.0.0.1:80\", acl = \"list-2\" }",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn what_changes_what_clients_get_is_missing_and_the_rest_is_not() {
    for line in [
        "-O transparent 80 /run/a",
        "-O dsr_if~eth1 192.0.2.10:80 10.0.0.1 a",
        "-O client_acl~1 -O acl~1~deny~country~SE 80 a",
        "-E /a/cert.crt -K /b/key.key 443 a",
        "-R -E /a/b.pem 443 a",
        "-E /none/x.pem 443 a",
        "-E /a/cert.crt -K /none/cert.key 443 a",
    ] {
        assert!(good(line).missing().count() > 0, "{line}");
    }
    for line in [
        "-fXdaPm5 -w /tmp/a -p /run/p -j /x -C 8888 80 a",
        "-U 53 a",
        "-H 80 a",
        "-u root 80 a",
        "-l 10.0.0.1:10000 80 a",
        "-O transparent -O keepalive 80 a",
        "-U -O transparent -O keepalive 53 a",
        "-O dsr_if~eth1 192.0.2.10:80 10.0.0.1",
        "-O dummy -O tcp_fastclose~both 80 a",
    ] {
        let translation = good(line);
        assert_eq!(translation.missing().count(), 0, "{line}: {:?}", translation.notes);
        parse(&translation.toml);
    }
}

#[test]
fn a_fast_close_is_that_of_connections() {
    for (line, part) in [
        ("-O tcp_fastclose~up 80 a", "fast-close = \"up\""),
        ("-O tcp_fastclose~down 80 a", "fast-close = \"down\""),
        ("-H -O tcp_fastclose~both 80 a", "changed: -O tcp_fastclose both: with -H"),
        ("-U -O tcp_fastclose~both 53 a", "dropped: -O tcp_fastclose both: no effect with -U"),
        ("-O tcp_fastclose~up -O dsr_if~eth1 192.0.2.10:80 10.0.0.1", "no effect in Pen with dsr_if"),
        ("-O tcp_fastclose 80 a", "dropped: -O tcp_fastclose: without a word Pen ignores it too"),
    ] {
        let result = run(line, "", keys::of_this_version);
        let said = said(&result);
        assert!(said.contains(part), "{line}: {said}");
        parse(&result.unwrap().toml);
    }
    for word in ["off", "nonsense"] {
        let translation = good(&format!("-O tcp_fastclose~both -O tcp_fastclose~{word} 80 a"));
        assert!(!translation.toml.contains("fast-close"), "{}", translation.toml);
    }
}

#[test]
fn a_server_that_is_taken_out_for_a_time_has_the_command_that_does_it() {
    let file =
        "server 0 address 10.0.0.1 port 80 blacklist 60\nserver 1 address 10.0.0.2 port 81 blacklist 0\n";
    let result = run("-F pen.cfg 80", file, keys::of_this_version);
    let said = said(&result);
    let note = "changed: pen.cfg:1: a server that runs is taken out for a time by a command: \
                `penstock ctl drain 10.0.0.1:80 --for 60s`";
    assert!(said.contains(note) && !said.contains("10.0.0.2:81 --for"), "{said}");
    parse(&result.unwrap().toml);
    let packets = run("-O dsr_if~eth1 -F pen.cfg 192.0.2.10:80", file, keys::of_this_version);
    let notes = super::tests::said(&packets);
    assert!(notes.contains("dropped: pen.cfg:1: no effect in Pen with dsr_if"), "{notes}");
    let wrong = run("-F pen.cfg 80 a", "server 0 blacklist soon\n", keys::of_this_version);
    assert!(wrong.unwrap_err().to_string().contains("\"soon\" is not a number"));
}

#[test]
fn the_clients_address_goes_to_every_server_unless_pen_names_one() {
    let config = parse(&good("-e 10.0.0.5 -O transparent 80 10.0.0.1").toml);
    assert!(config.pools.len() == 2);
    for pool in &config.pools {
        assert_eq!(pool.source_address, config::types::SourceAddress::Client, "{}", pool.name);
    }
    let translation = good("-O transparent -O source~10.0.0.7 80 10.0.0.1");
    assert!(translation.toml.contains("source-address = \"10.0.0.7\""), "{}", translation.toml);
    let off = good("-O transparent -O no~transparent -O keepalive -O no~keepalive 80 a");
    assert!(!off.toml.contains("source-address") && !off.toml.contains("tcp-keepalive"), "{}", off.toml);
}

#[test]
fn entries_of_countries_lack_only_the_database() {
    let file = "acl 1 permit country SE\nacl 1 permit country NO\nacl 1 deny country no\nclient_acl 1\n";
    let result = run("-F pen.cfg 80 10.0.0.1", file, keys::of_this_version);
    let said = said(&result);
    assert!(said.contains("entries = [\"permit country:SE\", \"permit country:NO\"]"), "{said}");
    let translation = result.unwrap();
    let missing: Vec<_> = translation.missing().collect();
    assert!(missing.len() == 1 && missing[0].text.contains("[geoip]"), "{missing:?}");
    let source = Source { name: "pen".into(), text: translation.toml };
    let refused = config::load(&source, &Environment::default()).err().map(|faults| faults.render());
    assert!(refused.is_some_and(|faults| faults.contains("[geoip]")));
}

#[test]
fn direct_server_return_has_a_listener_and_a_pool_of_its_own() {
    let file = "acl 1 deny 10.9.0.7\nacl 1 permit 10.9.0.0 255.255.255.0\nacl 1 permit 10.0.0.0 255.0.0.0\n\
                acl 1 permit fd00::/64\nacl 1 permit 10.8.0.9\nacl 1 permit 10.9.0.7\n\
                tarpit_acl 1\n";
    let line = "-F pen.cfg -O dsr_if~eth1 -b 5 -e 10.0.0.9 192.0.2.10 10.0.0.1:81:0:0:3 10.0.0.2 10.0.0.2:8000 [fd00::1]";
    let result = run(line, file, keys::of_this_version);
    let said = said(&result);
    for part in [
        "bind = \"192.0.2.10:*\"",
        "transport = \"tcp\"",
        "{ address = \"10.0.0.1:81\", weight = 3 },",
        "{ address = \"10.0.0.2:80\", weight = 2 },",
        "dropped: [fd00::1]: with dsr_if Pen has no IPv6",
        "tarpit-networks = [\"10.9.0.0/24\", \"10.8.0.9\"]",
        "changed: pen.cfg:1: 10.9.0.7 is held only while no machine has it",
        "missing: pen.cfg:3: 10.0.0.0/8 is too large",
        "dropped: pen.cfg:4: with dsr_if Pen has no IPv6",
        "dropped: pen.cfg:6: an entry before it denies 10.9.0.7",
        "dropped: -b 5: no effect in Pen with dsr_if either",
        "dropped: -e 10.0.0.9: no effect in Pen with dsr_if either",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    parse(&result.unwrap().toml);
    let udp = good("-U -r -O dsr_if~eth1 192.0.2.10:53 10.0.0.1:5353");
    assert!(udp.toml.contains("transport = \"udp\""), "{}", udp.toml);
    assert_eq!(parse(&udp.toml).pools[0].backends[0].address.to_string(), "10.0.0.1:53");
    for (line, part) in [
        ("-O dsr_if~eth1 80 10.0.0.1", "needs the address of the service"),
        ("-O dsr_if~eth1 192.0.2.10:80 192.0.2.10:81", "is the address of the service itself"),
        ("-O dsr_if~eth1 192.0.2.10:80 [fd00::1] a", "it has no server with an IPv4 address"),
        ("-O dsr_if~an-interface-too-long 192.0.2.10:80 10.0.0.1", "is no name of a network interface"),
    ] {
        let faults = run(line, "", keys::of_this_version).unwrap_err().to_string();
        assert!(faults.contains(part), "{line}: {faults}");
    }
}

#[test]
fn a_list_that_holds_all_other_addresses_is_missing() {
    for (file, missing) in [
        ("tarpit_acl 2", 1),
        ("acl 2 permit 10.9.0.0 255.255.0.0\nacl 2 deny 10.8.0.1\ntarpit_acl 2", 1),
        ("acl 2 permit country SE\ntarpit_acl 2", 1),
        ("tarpit_acl 2\ntarpit_acl -1", 0),
    ] {
        let result = run("-O dsr_if~eth1 -F pen.cfg 192.0.2.10:80 10.0.0.1", file, keys::of_this_version);
        let translation = result.unwrap();
        assert_eq!(translation.missing().count(), missing, "{file}: {:?}", translation.notes);
        parse(&translation.toml);
    }
}

#[test]
fn every_note_is_a_comment_of_the_configuration() {
    for line in [
        "-e b 80 a:80:5:9",
        "-p /run/p -m 5 -H 80 a b",
        "-O acl~0~deny~10.0.0.1 -B c 80 a",
        "-O dsr_if~e -O tarpit_acl~1 1.2.3.4 1.2.3.5",
    ] {
        let translation = good(line);
        let comments: Vec<_> = translation.toml.lines().filter_map(|line| line.strip_prefix("# ")).collect();
        let comments = comments.join(" ");
        for note in &translation.notes {
            assert!(
                comments.contains(&format!("{}: {}", note.place, note.text)),
                "{note}\n{}",
                translation.toml
            );
        }
    }
}

#[test]
fn a_large_file_takes_no_long_time() {
    let file: String = (0..20_000)
        .map(|at| format!("server {at} address 10.0.{}.{} port 80\nx{at}\n", at / 250, at % 250 + 1))
        .collect();
    let translation = run("-F pen.cfg 80", &file, keys::of_this_version).unwrap();
    assert!(translation.notes.len() > 20_000);
}

#[test]
fn the_log_of_another_machine_and_the_pid_file_have_their_keys() {
    let translation = good("-l loghost:10000 -p /run/p -w /tmp/a 80 a");
    assert!(translation.toml.contains("target = \"syslog+udp://loghost:10000\""), "{}", translation.toml);
    assert!(translation.toml.contains("pid-file = \"/run/p\""), "{}", translation.toml);
    let notes: Vec<_> = translation.notes.iter().map(ToString::to_string).collect();
    assert!(
        notes.iter().any(|note| note.starts_with("changed: -l loghost:10000: messages of syslog")),
        "{notes:?}"
    );
    assert!(
        notes.iter().any(|note| note.starts_with("dropped: -w /tmp/a: `/status.html` of `[admin]`")),
        "{notes:?}"
    );
}

#[test]
fn a_server_with_weight_0_is_named_because_it_gets_no_client() {
    let translation = good("-W -r 80 10.0.0.1:8000:0:0:3 10.0.0.2:8000");
    assert!(translation.toml.contains("weight = 0"), "{}", translation.toml);
    let notes: Vec<_> = translation.notes.iter().map(ToString::to_string).collect();
    let said = "changed: 10.0.0.2:8000: weight 0: it gets no client, as in Pen with -W";
    assert_eq!(notes.iter().filter(|note| note.contains("weight 0")).collect::<Vec<_>>(), [said]);
    assert!(
        translation.toml.contains("# 10.0.0.2:8000: weight 0: it gets no client"),
        "{}",
        translation.toml
    );
}
