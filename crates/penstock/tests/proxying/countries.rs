//! Access lists by country, with databases that another project's program writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use testing::client::{Stream, request};
use testing::server::{Setup, penstock};
use testing::{Client, Scripted, Server, attack, secs, tools};

/// Writes a database of the type, with a country for each network; `-` writes a record without a country.
const WRITE: &str = "
import sys
from netaddr import IPSet
from mmdb_writer import MMDBWriter
kind, version, path = sys.argv[1:4]
writer = MMDBWriter(int(version), kind, languages=['en'], ipv4_compatible=version == '6')
for entry in sys.argv[4:]:
    network, country = entry.split('=')
    record = {'autonomous_system_number': 64496}
    if country != '-':
        record = {'continent': {'code': 'EU'}, 'country': {'iso_code': country, 'names': {'en': country}}}
    writer.insert_network(IPSet([network]), record)
writer.to_db_file(path)
";

fn write(path: &Path, kind: &str, version: &str, networks: &[&str]) {
    let mut command = Command::new(tools::python("mmdb"));
    command.args(["-c", WRITE, kind, version]).arg(path).args(networks);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn config(backend: &Scripted, entries: &str) -> String {
    format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
         [geoip]\ndatabase = \"@DIR@/geo.mmdb\"\n\
         [acl.near]\nentries = [{entries}]\nfile = \"@DIR@/near.acl\"\ndefault = \"deny\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nacl = \"near\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{}\"]\n",
        backend.address
    )
}

/// What a client from `source` gets: the body, or nothing.
fn ask(source: &str, server: &Server) -> String {
    let stream = attack::connect_from(source, &server.address("web")).unwrap();
    let mut client = Client::over(Stream::Tcp(stream));
    let _ = client.try_send(request("GET", "/", &[], b""));
    client.try_response(secs(10)).map_or("nothing".to_owned(), |answer| answer.text())
}

fn files(setup: &Setup) -> (PathBuf, PathBuf) {
    (setup.dir().join("geo.mmdb"), setup.dir().join("near.acl"))
}

#[test]
fn clients_come_in_by_their_country_and_a_reload_reads_the_database_again() {
    let backend = Scripted::answering("app");
    let setup = Setup::new(&config(&backend, "\"permit 127.0.3.1\", \"deny country:FR\""));
    let (database, list) = files(&setup);
    let networks =
        ["127.0.2.0/24=DE", "127.0.3.0/24=FR", "127.0.4.0/25=DE", "2001:db8::/32=DE", "127.0.9.0/24=-"];
    write(&database, "GeoLite2-Country", "6", &networks);
    fs::write(&list, "# friends\npermit country:de\n").unwrap();
    let server = setup.start();
    let gets = |server: &Server, cases: &[(&str, &str)]| {
        for (source, expected) in cases {
            assert_eq!(ask(source, server), *expected, "{source}");
        }
    };
    gets(
        &server,
        &[
            ("127.0.2.7", "app"),
            ("127.0.3.7", "nothing"),
            ("127.0.3.1", "app"),
            ("127.0.4.127", "app"),
            ("127.0.4.128", "nothing"),
            ("127.0.9.1", "nothing"),
            ("127.0.0.1", "nothing"),
        ],
    );
    let why = |from: &str| {
        let output = server.ctl(&["why", "--from", from, "http://x/"]);
        String::from_utf8(output.stdout).unwrap()
    };
    let denied = why("127.0.3.7");
    assert!(denied.contains("127.0.3.7 (FR)") && denied.contains("(deny country:FR)"), "{denied}");
    assert!(why("2001:db8::7").contains("2001:db8::7 (DE)"), "{}", why("2001:db8::7"));
    let json = server.ctl_json(&["why", "--from", "127.0.3.7", "http://x/"]);
    assert_eq!((&json["country"], &json["steps"][1]["entry"]), (&"FR".into(), &"deny country:FR".into()));

    // Another database, with cities and IPv4 alone.
    write(&database, "GeoLite2-City", "4", &["127.0.2.0/24=FR", "127.0.5.0/24=DE"]);
    assert!(server.ctl(&["reload"]).status.success());
    gets(&server, &[("127.0.2.7", "nothing"), ("127.0.5.7", "app"), ("127.0.4.127", "nothing")]);

    // What is wrong refuses the reload, and the earlier one stays.
    let refused = |why: &str| {
        let output = server.ctl(&["reload"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why), "{why}: {output:?}");
        gets(&server, &[("127.0.2.7", "nothing"), ("127.0.5.7", "app")]);
    };
    write(&database, "GeoLite2-ASN", "6", &["127.0.2.0/24=-"]);
    refused("has no countries: it is of the type GeoLite2-ASN");
    write(&database, "GeoLite2-Country", "6", &["127.0.2.0/24=FR"]);
    refused("line 2 of");
    refused("no network of country DE");
    fs::write(&database, "no database").unwrap();
    refused("is no sound GeoIP database");
    fs::remove_file(&database).unwrap();
    refused("cannot be read");
}

#[test]
fn a_damaged_database_is_refused_and_never_hangs() {
    let backend = Scripted::answering("app");
    let setup = Setup::new(&config(&backend, "\"deny country:FR\""));
    let (database, list) = files(&setup);
    write(&database, "GeoLite2-Country", "6", &["127.0.2.0/24=DE", "127.0.3.0/24=FR", "2001:db8::/32=DE"]);
    fs::write(&list, "").unwrap();
    let good = fs::read(&database).unwrap();
    let server = setup.start();
    // Each byte of the tree and of the records once, and the file cut at many places.
    let mut damaged = Vec::new();
    for at in (0..good.len()).step_by(7) {
        let mut bytes = good.clone();
        bytes[at] = if at % 2 == 0 { 0 } else { 0xff };
        damaged.push(bytes);
        damaged.push(good[..at].to_vec());
    }
    // A tree of which every record leads back to the root.
    let mut circle = good.clone();
    circle[..good.len() / 2].fill(0);
    damaged.push(circle);
    let file = server.dir.path().join("penstock.toml");
    for bytes in damaged.iter().step_by(damaged.len() / 60 + 1).chain(damaged.last()) {
        fs::write(&database, bytes).unwrap();
        let output = penstock(&["check", file.to_str().unwrap()]);
        assert!(output.status.code().is_some_and(|code| code != 101), "{output:?}");
    }
}

#[test]
fn an_entry_of_a_country_without_a_database_or_with_a_wrong_code_names_its_line() {
    let setup = Setup::new("");
    let file = setup.dir().join("penstock.toml");
    let check = |entry: &str| {
        let text = format!(
            "[acl.near]\nentries = [\"{entry}\"]\ndefault = \"deny\"\n\
             [listener.web]\nbind = \"127.0.0.1:0\"\nacl = \"near\"\npool = \"app\"\n\
             [pool.app]\nbackends = [\"127.0.0.1:1\"]\n"
        );
        fs::write(&file, text).unwrap();
        let output = penstock(&["check", file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = check("deny country:DE");
    assert!(
        said.contains("penstock.toml:2:") && said.contains("there is no `database` in [geoip]"),
        "{said}"
    );
    let said = check("deny country:Germany");
    assert!(said.contains("is not the code of a country"), "{said}");
}
