//! Certificates of an authority go through the gate when asked to: Pebble issues, knot has the zone.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use testing::dns_updates::Updatable;
use testing::pebble::{Pebble, PebbleSetup};
use testing::pki::{Time, self_signed};
use testing::server::Setup;
use testing::witness::served;
use testing::{Server, eventually, secs};

struct Site {
    server: Server,
    port: u16,
}

impl Site {
    /// `before` is the text of a certificate that is there before.
    fn start(pebble: &Pebble, names: &Updatable, servers: &str, before: Option<&str>) -> Self {
        let port = testing::port::free();
        let address = names.address;
        let key = names.key("penstock").display().to_string();
        let setup = Setup::new(&format!(
            "[process]\nstate-directory = \"@DIR@/state\"\n[control]\nsocket = \"@DIR@/control.sock\"\n\
             [listener.secure]\nbind = \"127.0.0.1:{port}\"\ntls = {{ acme = \"test\" }}\n\
             [[listener.secure.route]]\nredirect = \"https://elsewhere.example/\"\nstatus = 307\n\
             [acme.test]\ndirectory = \"{}\"\nca = \"{}\"\nterms-agreed = true\nnames = [\"a.example\"]\n\
             challenge = \"dns-01\"\ndns = {{ server = \"{address}\", key-file = \"{key}\", wait = \"0s\" }}\n\
             [acme.test.tlsa]\nserver = \"{address}\"\nkey-file = \"{key}\"\nservices = [\"127.0.0.1:{port}\"]\n\
             servers = [{servers}]\ntime-limit = \"2s\"\n",
            pebble.directory,
            pebble.ca.display()
        ));
        if let Some(text) = before {
            let directory = setup.dir().join("state/acme/test/certificates");
            fs::create_dir_all(&directory).unwrap();
            let path = directory.join("a.example.pem");
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
        Self { server: setup.start(), port }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.server.dir.path().join("state/acme/test").join(name)
    }

    fn reason(&self) -> String {
        let certs = self.server.ctl_json(&["certs"]);
        certs[0]["orders"][0]["reason"].as_str().unwrap_or_default().to_owned()
    }
}

#[test]
fn renewed_certificate_is_used_only_when_its_record_is_everywhere() {
    let names = Updatable::start("");
    let pebble = Pebble::start(PebbleSetup { name_server: Some(names.address), ..PebbleSetup::default() });
    let good = format!("\"{}\"", names.address);

    // The first one waits for nothing: there is no record that a cache could remember.
    let first = Site::start(&pebble, &names, &good, None);
    eventually("a certificate", secs(60), || served(&first.server, "a.example"));
    let owner = format!("_{}._tcp.a.example.", first.port);
    assert!(names.dig(&owner, "TLSA").starts_with("3 1 1 "));

    // A server of the zone does not answer: the renewed one waits, and is kept.
    let directory = tempfile::tempdir().unwrap();
    let pair = self_signed(directory.path(), "old", &["a.example"], Time::Over);
    let old = fs::read_to_string(&pair.certificate).unwrap() + &fs::read_to_string(&pair.key).unwrap();
    let dead = format!("{good}, \"127.0.0.1:{}\"", testing::port::free());
    let waits = Site::start(&pebble, &names, &dead, Some(&old));
    let staged = eventually("it is issued and waits", secs(60), || {
        let kept = fs::read_to_string(waits.file("a.example.next")).ok()?;
        kept.contains("PRIVATE KEY").then_some(kept)
    });
    assert_eq!(fs::read_to_string(waits.file("certificates/a.example.pem")).unwrap(), old);
    assert!(!staged.contains(&old) && !waits.reason().contains("issued"));
    let owner = format!("_{}._tcp.a.example.", waits.port);
    eventually("its record is at the server that answers", secs(30), || {
        (names.dig(&owner, "TLSA").lines().count() == 1).then_some(())
    });
}

#[test]
fn renewed_certificate_takes_the_place_of_the_old_one_and_of_its_record() {
    let directory = tempfile::tempdir().unwrap();
    let pair = self_signed(directory.path(), "old", &["a.example"], Time::Over);
    let old = fs::read_to_string(&pair.certificate).unwrap() + &fs::read_to_string(&pair.key).unwrap();
    // The TTL of the zone is 1 s. A wildcard, as the port of the listener is known only later.
    let names = Updatable::start("*._tcp.a TLSA 3 1 1 00\n");
    let pebble = Pebble::start(PebbleSetup { name_server: Some(names.address), ..PebbleSetup::default() });
    let good = format!("\"{}\"", names.address);
    let site = Site::start(&pebble, &names, &good, Some(&old));
    let owner = format!("_{}._tcp.a.example.", site.port);
    eventually("the record of the new one", secs(60), || {
        let records = names.dig(&owner, "TLSA");
        (records.lines().count() == 1 && !records.contains("3 1 1 00")).then_some(())
    });
    let path = site.file("certificates/a.example.pem");
    eventually("it is installed", secs(60), || (fs::read_to_string(&path).unwrap() != old).then_some(()));
    eventually("it is served", secs(60), || served(&site.server, "a.example"));
    let events = site.server.said(&["events"]);
    assert!(events.contains("its TLSA record is everywhere; 2 s until no cache is without it"), "{events}");
    assert!(!site.file("a.example.next").exists());
}
