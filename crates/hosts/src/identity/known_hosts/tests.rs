use proptest::prelude::*;

use super::*;

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJKRYUVfuEFUGyOJ4Ub4j8kXhVwPkN7SrvI9QeYwHyEq";

fn numbers(file: &KnownHosts, name: &str) -> Vec<usize> {
    file.about(name).map(|line| line.number).collect()
}

#[test]
fn every_kind_of_line_is_found_by_the_names_it_is_about() {
    let text = format!(
        "# comment\n\nweb1,10.0.0.1 {KEY} root@web1\n[web1]:2222 {KEY}\n*.example.com,!db.example.com {KEY}\n\
         @cert-authority *.fleet.example {KEY}\n@revoked * {KEY}\n"
    );
    let file = KnownHosts::parse(&text);
    assert_eq!(file.faults, []);
    assert_eq!(numbers(&file, "web1"), [3, 7]);
    assert_eq!(numbers(&file, "WEB1"), [3, 7]);
    assert_eq!(numbers(&file, "[web1]:2222"), [4, 7]);
    assert_eq!(numbers(&file, "web9.example.com"), [5, 7]);
    assert_eq!(numbers(&file, "db.example.com"), [7]);
    let markers: Vec<Marker> = file.lines.iter().map(|line| line.marker).collect();
    assert_eq!(markers, [Marker::None, Marker::None, Marker::None, Marker::Authority, Marker::Revoked]);
}

/// As `ssh-keygen -H` of OpenSSH 9.2.
#[test]
fn hashed_names_are_found_by_the_name_alone() {
    let salt = Base64::encode_string(&[9; 20]);
    let hash = Hmac::<Sha1>::new_from_slice(&[9; 20]).unwrap().chain_update(b"web1").finalize().into_bytes();
    let file = KnownHosts::parse(&format!("|1|{salt}|{} {KEY}\n", Base64::encode_string(&hash)));
    assert_eq!(numbers(&file, "web1"), [1]);
    assert_eq!(numbers(&file, "Web1"), [1]);
    assert_eq!(numbers(&file, "web2"), Vec::<usize>::new());
}

#[test]
fn damaged_lines_are_told_with_their_numbers_and_hide_no_others() {
    let text = format!(
        "web1 {KEY}\nweb2\nweb3 ssh-ed25519\n|1|abc|def {KEY}\n@trusted web4 {KEY}\nweb5 2048 35 1234\na,,b {KEY}\nweb6 {KEY}\r\n"
    );
    let file = KnownHosts::parse(&text);
    assert_eq!(file.lines.iter().map(|line| line.number).collect::<Vec<_>>(), [1, 8]);
    let said: Vec<String> = file.faults.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "line 2: names, an algorithm and a key stand on a line",
            "line 3: a public key has two words: its algorithm, and base64 that begins with AAAA",
            "line 4: a hashed name is |1|salt|hash, each 20 bytes in base64: was the line cut?",
            "line 5: a marker is @cert-authority or @revoked",
            "line 6: a key of SSH version 1: version 1 is obsolete",
            "line 7: the list of names has an empty part or a mark",
        ]
    );
}

proptest! {
    #[test]
    fn any_text_is_read_without_harm_and_every_line_is_accounted_for(text in "\\PC{0,200}(\n\\PC{0,80}){0,5}") {
        let file = KnownHosts::parse(&text);
        let meant = text.lines().map(|line| line.trim_matches([' ', '\t', '\r'])).filter(|line| !line.is_empty() && !line.starts_with('#'));
        prop_assert_eq!(file.lines.len() + file.faults.len(), meant.count());
        let _ = file.about("web1").count();
    }
}
