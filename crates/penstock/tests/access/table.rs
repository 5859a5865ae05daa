//! Who logs in where, and what becomes of two attacks: two tables of docs/control-access.md, from what happens here. With
//! UPDATE_GOLDEN=1 they are written anew.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use access::sasl::gs2::{BindingFlag, Header, TLS_EXPORTER, TokenForm};
use access::sasl::krb5::{First, application_data};
use access::sasl::scram::Client;
use base64ct::{Base64, Encoding};
use testing::pki::Pair;
use testing::server::{binary, run_to_end};
use testing::{secs, tools};

use super::kdc::{Center, Realm};
use super::kerberos;
use super::matrix::{Program, gsasl_server, initiator};
use super::peer::Peer;
use super::programs::gsasl_as;

const MECHANISMS: [&str; 5] =
    ["EXTERNAL", "SCRAM-SHA-256", "SCRAM-SHA-256-PLUS", "GS2-KRB5", "GS2-KRB5-PLUS"];

/// What is tried, and what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    LoggedIn,
    /// The other side does not have it.
    Lacks(&'static str),
}

const NO_MECHANISM: Cell = Cell::Lacks("GNU SASL has no GS2-KRB5-PLUS");
const NO_BINDINGS: Cell = Cell::Lacks("the programs of Cyrus SASL cannot set channel bindings");
const NO_CALLBACK: Cell = Cell::Lacks("the server program of GNU SASL cannot validate EXTERNAL");

#[track_caller]
fn output(command: &mut Command) -> String {
    let Output { stdout, stderr, .. } = run_to_end(command.stdin(Stdio::null()), secs(30));
    format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr))
}

fn logged_in(what: &str, said: &str) -> Cell {
    assert!(said.contains("235 2.7.0 "), "{what}: {said}");
    Cell::LoggedIn
}

fn ours_to_ours(realm: &Realm, mechanism: &str) -> Cell {
    let site = kerberos::site(realm, "");
    let mut command = Command::new(binary());
    realm.as_user(&mut command, "ann");
    command.args([
        "ctl",
        "--host",
        &format!("localhost:{}", site.port),
        "--user",
        "ann",
        "--mechanism",
        mechanism,
    ]);
    command.arg("--ca").arg(site.file("ca.pem"));
    if mechanism == "EXTERNAL" {
        let Pair { certificate, key, .. } = site.certificate("root");
        command.arg("--certificate").arg(certificate).arg("--key").arg(key);
    } else {
        command.args(["--password-file", &super::ctl::password(&site, "pencil")]);
    }
    let said = output(command.arg("status"));
    assert!(said.contains("POOL app"), "{mechanism}: {said}");
    site.logged(&format!("logged in ({mechanism}, "));
    Cell::LoggedIn
}

fn gsasl_to_ours(realm: &Realm, mechanism: &str) -> Cell {
    let site = kerberos::site(realm, "tls-start = \"starttls\"");
    if mechanism.starts_with("SCRAM") {
        return logged_in(mechanism, &gsasl_as(&site, mechanism, "ann", "pencil"));
    }
    if mechanism == "GS2-KRB5-PLUS" {
        let all = output(Command::new(tools::program("gsasl")).arg("--client-mechanisms"));
        assert!(all.contains("GS2-KRB5") && !all.contains(mechanism), "{all}");
        return NO_MECHANISM;
    }
    let mut command = Command::new(tools::program("gsasl"));
    realm.as_user(&mut command, "ann");
    command.args(["--smtp", "--connect", &format!("localhost:{}", site.port), "--mechanism", mechanism]);
    command.args(["--service", "host", "--hostname", "localhost", "--starttls"]);
    command.arg("--x509-ca-file").arg(site.file("ca.pem"));
    if mechanism == "EXTERNAL" {
        let Pair { certificate, key, .. } = site.certificate("root");
        command.arg("--x509-cert-file").arg(certificate).arg("--x509-key-file").arg(key);
        command.args(["--authorization-id", "root"]);
    } else {
        command.args(["--authorization-id", "ann"]);
    }
    logged_in(mechanism, &output(&mut command))
}

/// A client of Cyrus, of which a terminal that the test may have is no business.
fn cyrus(realm: &Realm, program: &str) -> Command {
    let mut command = Command::new(tools::program("setsid"));
    realm.as_user(&mut command, "ann");
    command.arg(tools::program("stdbuf")).arg("-oL").arg(tools::program(program));
    command
}

fn cyrus_to_ours(realm: &Realm, mechanism: &str) -> Cell {
    let site = kerberos::site(realm, "");
    let identity = (mechanism == "EXTERNAL").then(|| site.certificate("root"));
    let name = if identity.is_some() { "root" } else { "ann" };
    let mut command = cyrus(realm, "sasl-sample-client");
    command.args(["-s", "host", "-n", "localhost", "-m", mechanism, "-a", name, "-u", name]);
    if identity.is_some() {
        command.args(["-e", "ssf=128,id=root"]);
    }
    let mut client = Program::start(&mut command);
    client.say(&format!("S: {}", Base64::encode_string(mechanism.as_bytes())));
    if mechanism.starts_with("SCRAM") {
        client.say("pencil");
    }
    if mechanism.ends_with("-PLUS") {
        assert!(!client.ends_well("C: ", "no mechanism available"), "{mechanism}");
        return NO_BINDINGS;
    }
    let first = Base64::decode_vec(&client.hear("C: ")).unwrap();
    let first = first.strip_prefix(format!("{mechanism}\0").as_bytes()).unwrap();
    let mut peer = Peer::connect(&site, identity.as_ref());
    let mut said = peer.challenge(&format!("AUTH {mechanism} {}", Base64::encode_string(first)));
    while let Ok(challenge) = said {
        client.say(&format!("S: {}", Base64::encode_string(&challenge)));
        said = peer.challenge(&client.hear("C: "));
    }
    logged_in(mechanism, &said.unwrap_err())
}

fn ours_to_gsasl(realm: &Realm, mechanism: &str) -> Cell {
    let mut command = Command::new(tools::program("stdbuf"));
    command.arg("-oL").arg(tools::program("gsasl")).args(["--server", "--mechanism", mechanism]);
    match mechanism {
        "GS2-KRB5" => {
            let mut ours = initiator(realm, "host@localhost", "ann");
            let mut gsasl = gsasl_server(realm);
            gsasl.say(&ours.hear("FIRST "));
            gsasl.say("y");
            ours.say(&gsasl.hear("(y/n) "));
            assert_eq!(ours.hear("LAST "), "true");
            gsasl.say("");
            assert!(gsasl.ends_well("client trusted", "mechanism error"));
            Cell::LoggedIn
        }
        "SCRAM-SHA-256" | "SCRAM-SHA-256-PLUS" => {
            let mut gsasl = Program::start(command.args(["--password", "pencil"]));
            let client = scram(mechanism);
            gsasl.say(&Base64::encode_string(client.first.as_bytes()));
            if mechanism.ends_with("-PLUS") {
                // It asks for those of its connection.
                gsasl.say(&Base64::encode_string(&BINDINGS));
            }
            // "r=" and "v=" in Base64.
            let challenge = format!("cj1{}", gsasl.hear("cj1"));
            let awaiting = client.respond(&Base64::decode_vec(&challenge).unwrap(), "pencil").unwrap();
            gsasl.say(&Base64::encode_string(awaiting.last.as_bytes()));
            let last = format!("dj{}", gsasl.hear("dj"));
            awaiting.verify(&Base64::decode_vec(&last).unwrap()).unwrap();
            gsasl.say("");
            assert!(gsasl.ends_well("client trusted", "mechanism error"));
            Cell::LoggedIn
        }
        "EXTERNAL" => {
            let mut gsasl = Program::start(&mut command);
            gsasl.say(&Base64::encode_string(b"ann"));
            gsasl.say("y");
            assert!(!gsasl.ends_well("client trusted", "No callback specified"), "it can now");
            NO_CALLBACK
        }
        _ => {
            let all = output(Command::new(tools::program("gsasl")).arg("--server-mechanisms"));
            assert!(all.contains("GS2-KRB5") && !all.contains(mechanism), "{all}");
            NO_MECHANISM
        }
    }
}

/// Channel bindings for programs that take any.
const BINDINGS: [u8; 32] = [7; 32];

fn scram(mechanism: &str) -> Client {
    let (flag, data) = match mechanism.ends_with("-PLUS") {
        true => (BindingFlag::Uses(TLS_EXPORTER.to_owned()), &BINDINGS[..]),
        false => (BindingFlag::Cannot, &[][..]),
    };
    Client::new("ann", None, flag, data, "abcdefgh").unwrap()
}

/// A server of Cyrus that knows the password of `ann`.
fn cyrus_server(realm: &Realm, mechanism: &str) -> Program {
    let conf = realm.file("sasl");
    fs::create_dir_all(&conf).unwrap();
    let database = conf.join("sasldb");
    let text =
        format!("pwcheck_method: auxprop\nauxprop_plugin: sasldb\nsasldb_path: {}\n", database.display());
    fs::write(conf.join("sample.conf"), text).unwrap();
    let mut add = Command::new("/bin/sh");
    add.args(["-c", "printf pencil | \"$0\" -p -c -f \"$1\" -u \"$2\" ann"]);
    add.arg(tools::program("saslpasswd2")).arg(&database).arg(host());
    assert!(run_to_end(add.stdin(Stdio::null()), secs(30)).status.success());
    let mut command = cyrus(realm, "sasl-sample-server");
    command.env("KRB5_KTNAME", realm.file("keytab")).env("SASL_CONF_PATH", &conf);
    command.args(["-s", "imap", "-m", mechanism]);
    if mechanism == "EXTERNAL" {
        command.args(["-e", "ssf=128,id=ann"]);
    }
    Program::start(&mut command)
}

fn host() -> String {
    nix::unistd::gethostname().unwrap().into_string().unwrap()
}

fn ours_to_cyrus(realm: &Realm, mechanism: &str) -> Cell {
    let mut cyrus = cyrus_server(realm, mechanism);
    cyrus.hear("S: ");
    let begin = |message: &[u8]| {
        format!("C: {}", Base64::encode_string(&[mechanism.as_bytes(), b"\0", message].concat()))
    };
    match mechanism {
        "EXTERNAL" => cyrus.say(&begin(b"")),
        "SCRAM-SHA-256" | "SCRAM-SHA-256-PLUS" => {
            let client = scram(mechanism);
            cyrus.say(&begin(client.first.as_bytes()));
            let challenge = Base64::decode_vec(&cyrus.hear("S: ")).unwrap();
            let awaiting = client.respond(&challenge, "pencil").unwrap();
            cyrus.say(&format!("C: {}", Base64::encode_string(awaiting.last.as_bytes())));
            if mechanism.ends_with("-PLUS") {
                let why = "Server does not support channel binding type";
                assert!(!cyrus.ends_well("Negotiation complete", why), "it has bindings now");
                return NO_BINDINGS;
            }
            awaiting.verify(&Base64::decode_vec(&cyrus.hear("S: ")).unwrap()).unwrap();
            cyrus.say("C: ");
        }
        "GS2-KRB5" => {
            let mut ours = initiator(realm, &format!("imap@{}", host()), "");
            cyrus.say(&begin(&Base64::decode_vec(&ours.hear("FIRST ")).unwrap()));
            ours.say(&cyrus.hear("S: "));
            assert_eq!(ours.hear("LAST "), "true");
            cyrus.say("C: ");
        }
        _ => {
            let flag = BindingFlag::Uses(TLS_EXPORTER.to_owned());
            let header = Header { form: TokenForm::Standard, flag, authzid: None };
            let data = application_data(&header, Some(&BINDINGS));
            let token = realm.token("ann", &format!("imap@{}", host()), Some(&data));
            cyrus.say(&begin(&First::encode(&header, &token).unwrap()));
            assert!(!cyrus.ends_well("Negotiation complete", "sasl-sample-server: "), "it has bindings now");
            return NO_BINDINGS;
        }
    }
    assert!(cyrus.ends_well("Negotiation complete", "sasl-sample-server: "), "{mechanism}");
    Cell::LoggedIn
}

/// Begins and ends the tables in the page.
const BEGIN: &str = "<!-- written by crates/penstock/tests/access/table.rs -->\n";
const END: &str = "<!-- end -->\n";

type Pairing = fn(&Realm, &str) -> Cell;

#[test]
fn the_tables_of_the_manual_are_what_happens() {
    let realms = [Center::Mit, Center::Heimdal].map(|center| Realm::of(center, None));
    for realm in &realms {
        realm.service(&format!("imap/{}", host()));
    }
    let pairings: [(&str, &str, Pairing); 5] = [
        ("`penstock ctl`", "penstock", ours_to_ours),
        ("gsasl 2.2", "penstock", gsasl_to_ours),
        ("Cyrus 2.1.28", "penstock", cyrus_to_ours),
        ("ours (`access`)", "gsasl 2.2", ours_to_gsasl),
        ("ours (`access`)", "Cyrus 2.1.28", ours_to_cyrus),
    ];
    let (mut table, mut reasons) = (String::new(), Vec::new());
    table += "| client | server | EXTERNAL | SCRAM-SHA-256 | -PLUS | GS2-KRB5 | -PLUS |\n|---|---|---|---|---|---|---|\n";
    for (client, server, log_in) in pairings {
        let _ = write!(table, "| {client} | {server} |");
        for mechanism in MECHANISMS {
            // Without Kerberos it makes no difference whose realm it is.
            let realms = if mechanism.starts_with("GS2") { &realms[..] } else { &realms[..1] };
            let cells: Vec<_> = realms.iter().map(|realm| log_in(realm, mechanism)).collect();
            assert!(cells.iter().all(|cell| *cell == cells[0]), "{client} {server} {mechanism}: {cells:?}");
            match cells[0] {
                Cell::LoggedIn => table += " yes |",
                Cell::Lacks(why) => {
                    let at = reasons.iter().position(|it| *it == why).unwrap_or_else(|| {
                        reasons.push(why);
                        reasons.len() - 1
                    });
                    let _ = write!(table, " no ({}) |", at + 1);
                }
            }
        }
        table.push('\n');
    }
    table += "\nGS2 was tried with the key distribution centres of MIT and of Heimdal, with tickets of the library of MIT.\n\n";
    for (at, why) in reasons.iter().enumerate() {
        let _ = writeln!(table, "{}. {why}.", at + 1);
    }
    table.push('\n');
    table += &attacks(&realms[0]);
    compare(&table);
}

/// What becomes of tickets that an attacker puts behind a header of his own.
fn attacks(realm: &Realm) -> String {
    let mut table =
        "| attack on GS2-KRB5 | penstock | gsasl 2.2 | Cyrus 2.1.28 |\n|---|---|---|---|\n".to_owned();
    for (what, bindings, authzid) in [
        ("a token without bindings (made for another protocol), behind `n,,`", None, None),
        ("a token without bindings, behind an injected `a=root`", None, Some("root")),
        ("a token made for `n,,`, behind an injected `a=root`", Some(&b"n,,"[..]), Some("root")),
    ] {
        let header = Header {
            form: TokenForm::Standard,
            flag: BindingFlag::Cannot,
            authzid: authzid.map(str::to_owned),
        };
        let message = |service: &str| First::encode(&header, &realm.token("ann", service, bindings)).unwrap();
        let site = kerberos::site(realm, "");
        let first = format!("AUTH GS2-KRB5 {}", Base64::encode_string(&message("host@localhost")));
        let ours = Peer::connect(&site, None).challenge(&first).is_ok();
        assert!(!ours, "{what}");
        let mut gsasl = gsasl_server(realm);
        gsasl.say(&Base64::encode_string(&message("host@localhost")));
        gsasl.say("y");
        gsasl.say("");
        let gsasl = gsasl.ends_well("client trusted", "mechanism error");
        let mut cyrus = cyrus_server(realm, "GS2-KRB5");
        cyrus.hear("S: ");
        let first = [b"GS2-KRB5\0", &message(&format!("imap@{}", host()))[..]].concat();
        cyrus.say(&format!("C: {}", Base64::encode_string(&first)));
        cyrus.say("C: ");
        let cyrus = cyrus.ends_well("Negotiation complete", "sasl-sample-server: ");
        let word = |accepted: bool| if accepted { "**accepted**" } else { "refused" };
        let _ = writeln!(table, "| {what} | {} | {} | {} |", word(ours), word(gsasl), word(cyrus));
    }
    table
}

fn compare(table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/control-access.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page has a place for the tables");
    let (there, after) = rest.split_once(END).expect("the place ends");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, format!("{before}{BEGIN}\n{table}\n{END}{after}")).unwrap();
        return;
    }
    assert_eq!(there.trim(), table.trim(), "UPDATE_GOLDEN=1 writes what happens now");
}
