//! `penstock ctl why`: the words of the question.

use clap::Args;

use super::word::parse_word;

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Why {
    /// Under the configuration of the open transaction (`begin`), as `commit` would serve it
    #[arg(long)]
    pending: bool,
    /// Listener at which the session arrives: NAME of [listener.NAME]; without it the URL's scheme and port find it
    #[arg(long, value_name = "NAME", value_parser = parse_word)]
    listener: Option<String>,
    /// Address of the client, with or without a port, or "unix" [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS", value_parser = parse_word)]
    from: Option<String>,
    /// Method of the request [default: GET]
    #[arg(long, value_name = "METHOD", value_parser = parse_word)]
    method: Option<String>,
    /// A header line of the request, once for each
    #[arg(long, value_name = "NAME: VALUE", value_parser = parse_word)]
    header: Vec<String>,
    /// A session that has ended: its `id` of the access log (header X-Request-Id), or the address and port of its client;
    /// the server remembers the last 4096 sessions
    #[arg(long, visible_alias = "request", value_name = "ID", value_parser = parse_word, conflicts_with_all = ["pending", "listener", "from", "method", "header", "url"])]
    session: Option<String>,
    /// What is asked for: http://HOST/PATH, https://HOST/PATH, tls://SERVER-NAME, tcp://LISTENER or udp://LISTENER
    #[arg(value_name = "URL", value_parser = parse_word, required_unless_present = "session")]
    url: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  penstock ctl why --from 203.0.113.7 https://shop.example/cart
  penstock ctl why --listener web --method POST --header 'X-Canary: 1' http://shop.example/api
  penstock ctl why --from 203.0.113.7 tcp://smtp
  penstock ctl why --pending https://shop.example/cart
  penstock ctl why --session 5fd0c3d2b6a04c1f9f1d0c3d2b6a04c1";

impl Why {
    /// Words of the control command.
    pub(super) fn words(&self) -> Vec<&str> {
        let mut words: Vec<&str> = self.pending.then_some("--pending").into_iter().collect();
        let single = [
            ("--session", &self.session),
            ("--listener", &self.listener),
            ("--from", &self.from),
            ("--method", &self.method),
        ];
        for (name, value) in single.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?))) {
            words.extend([name, value]);
        }
        for header in &self.header {
            words.extend(["--header", header]);
        }
        words.extend(self.url.as_deref());
        words
    }
}
