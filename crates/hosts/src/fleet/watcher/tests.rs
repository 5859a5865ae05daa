use super::*;
use text::shell::quote;

const STARTED: CommandId = CommandId { process: 77, start: 1234, group: 77, session: 70 };

#[test]
fn mark_is_taken_out_wherever_the_network_cuts_it() {
    let whole = b"motd\npenstock-watcher-a1 77 1234 77 70\nout\npenstock-watcher-a1 77 1234 77 70\n";
    for cut in 0..=whole.len() {
        let mut mark = Mark::new("a1");
        let mut out = mark.feed(&whole[..cut]);
        out.extend(mark.feed(&whole[cut..]));
        out.extend(mark.give_up());
        assert_eq!(out, b"motd\nout\npenstock-watcher-a1 77 1234 77 70\n", "cut at {cut}");
        assert_eq!(mark.hold(), Hold::Watched(STARTED));
    }
}

#[test]
fn output_without_a_mark_is_given_whole_and_at_most_a_mark_is_held_back() {
    let mut mark = Mark::new("a1");
    assert_eq!(mark.feed(b"hello\npenstock-wa"), b"hello\n");
    assert_eq!(mark.feed(b"t us\n"), b"penstock-wat us\n");
    assert_eq!(mark.hold(), Hold::Unclear);
    assert_eq!(mark.feed(b"penstock"), b"");
    assert_eq!(mark.give_up(), b"penstock");
    assert_eq!(mark.hold(), Hold::None);
}

#[test]
fn line_that_only_begins_like_the_mark_is_the_commands_own() {
    let endless = format!("penstock-watcher-a1 {}", "7".repeat(100));
    for own in [
        "penstock-watcher-a1x 77 1234 77 70\n",
        "penstock-watcher-a1\t1\n",
        "penstock-watcher-a1\u{e4}\n",
        &endless,
    ] {
        let mut mark = Mark::new("a1");
        let mut out: Vec<u8> = own.bytes().flat_map(|byte| mark.feed(&[byte])).collect();
        assert_eq!(mark.hold(), Hold::Unclear, "{own:?}");
        out.extend(mark.feed(b"penstock-watcher-a1 77 1234 77 70\nout\n"));
        assert_eq!(String::from_utf8(out).unwrap(), format!("{own}out\n"));
        assert_eq!(mark.hold(), Hold::Watched(STARTED));
    }
}

#[test]
fn numbers_that_no_command_can_have_identify_none() {
    for lie in [
        "",
        " ",
        " 0 1234 0 0",
        " 1 1234 1 1",
        " 77 0 77 70",
        " -1 1234 -1 -1",
        " 77 1234 77",
        " 77 1234 77 70 9",
        " 2147483648 1234 77 70",
        " 18446744073709551616 1 1 1",
        " 77 1234 $(reboot) 70",
    ] {
        let mut mark = Mark::new("a1");
        assert_eq!(mark.feed(format!("penstock-watcher-a1{lie}\n").as_bytes()), b"", "{lie}");
        assert_eq!(mark.hold(), Hold::Unproved, "{lie}");
    }
}

#[test]
fn flood_without_a_mark_ends_the_search() {
    let mut mark = Mark::new("a1");
    let flood = vec![b'x'; 65 * 1024];
    assert_eq!(mark.feed(&flood).len(), flood.len());
    assert_eq!(mark.hold(), Hold::None);
    // Output that repeats the start of a mark must not use more and more memory or time.
    let mut mark = Mark::new("a1");
    let flood = b"penstock-watcher-a1 ".repeat(64 * 1024);
    let given: usize = flood.chunks(1000).map(|piece| mark.feed(piece).len()).sum();
    assert_eq!(given + mark.give_up().len(), flood.len());
}

#[test]
fn what_was_wrapped_is_taken_apart_again_and_nothing_else_is() {
    for command in ["true", "echo 'it is' \"$HOME\" \\''", ""] {
        for input in [Input::None, Input::Sent] {
            let watched = unwrap(&wrap(command, input, "a1")).unwrap();
            assert_eq!((watched.command.as_str(), watched.input), (command, input));
            let mut mark = Mark::new("a1");
            assert_eq!(mark.feed(watched.mark.as_bytes()), b"");
            assert!(matches!(mark.hold(), Hold::Watched(_)));
        }
    }
    assert_eq!(unwrap("exec sh -c 'echo hi' sh 'x'"), None);
}

/// Other login shells must pass the proof on unchanged: csh interprets line ends and `!`, fish a doubled backslash.
#[test]
fn proof_is_one_line_that_one_pair_of_quotes_quotes_for_any_login_shell() {
    let proof = proof();
    assert!(!proof.contains(['\'', '\n', '\r']), "{proof}");
    assert!(!proof.contains("\\\\") && proof.matches('!').count() == proof.matches("!= ").count(), "{proof}");
    // dropbear accepts 9,000 bytes in all: more than 5,300 remain for the command.
    assert!(wrap("", Input::None, "a1").len() < 3700, "{}", wrap("", Input::None, "a1").len());
}

#[test]
fn quoted_text_is_one_word_with_quotes_and_blanks_in_it() {
    assert_eq!(quote("it's $HOME"), r"'it'\''s $HOME'");
    for text in AWKWARD {
        assert_eq!(unquote(&format!("{} rest", quote(text))), Some(((*text).to_owned(), " rest")));
    }
    // Text that other programs and earlier versions quoted: in quotes, a POSIX shell keeps a backslash.
    assert_eq!(unquote(r"'a\'\''b'"), Some((r"a\'b".to_owned(), "")));
}

/// In single quotes sh keeps a backslash; in fish a backslash escapes a quote or a backslash (fish-language, "Quotes").
/// Outside quotes both shells read `\'` and `\\` the same way.
#[test]
fn quoted_text_is_the_same_word_for_sh_and_for_fish() {
    for text in AWKWARD {
        for inside in [Inside::Sh, Inside::Fish] {
            assert_eq!(read_word(&quote(text), inside).as_deref(), Some(*text), "{inside:?} {}", quote(text));
        }
    }
}

const AWKWARD: &[&str] = &[
    "",
    r"\",
    "'",
    r"\'",
    r"'\",
    r"\\'\",
    r"echo \'; touch /root/PWN; echo \'",
    r#"printf '%s\n' "a\\b""#,
    "it's $HOME `x` !y\n*",
];

/// Meaning of a backslash in single quotes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Inside {
    Sh,
    Fish,
}

/// Reads one word of quotes and backslashes as a shell does; `None` if a quote is open at the end.
fn read_word(text: &str, inside: Inside) -> Option<String> {
    let (mut word, mut quoted, mut characters) = (String::new(), false, text.chars().peekable());
    while let Some(c) = characters.next() {
        let escapes = !quoted || inside == Inside::Fish;
        match (c, characters.peek()) {
            ('\\', Some('\'' | '\\')) if escapes => word.extend(characters.next()),
            ('\'', _) => quoted = !quoted,
            _ => {
                assert!(quoted, "outside of quotes: {c:?}");
                word.push(c);
            }
        }
    }
    (!quoted).then_some(word)
}
