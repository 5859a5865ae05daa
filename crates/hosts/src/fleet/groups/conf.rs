//! `groups.conf` of ClusterShell: commands that print groups, and directories of further files.

use super::{FileFault, Upcalls};

/// Content of one `groups.conf`, or of one file of its `confdir`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conf {
    /// Source in which `@name` is looked up.
    pub default: Option<String>,
    /// Directories of further files `*.conf`.
    pub conf_directories: Vec<String>,
    pub auto_directories: Vec<String>,
    pub sources: Vec<ConfSource>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfSource {
    pub name: String,
    pub upcalls: Upcalls,
}

impl Conf {
    /// Parses a file of `directory`. `$CFGDIR` in the file is replaced by `config_directory`.
    ///
    /// # Errors
    /// Lines that are no section, setting, continuation or comment, and sources without `map`.
    pub fn parse(
        place: &str,
        text: &str,
        directory: &str,
        config_directory: &str,
    ) -> Result<Self, Vec<FileFault>> {
        let mut faults = Vec::new();
        let mut sections: Vec<Section> = Vec::new();
        for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
            let line_number = index + 1;
            let mut fault = |what: String, advice: &str| {
                faults.push(FileFault {
                    place: place.to_owned(),
                    line: line_number,
                    what,
                    advice: advice.to_owned(),
                });
            };
            let body = line.trim();
            if body.is_empty() || body.starts_with(['#', ';']) {
                continue;
            }
            if let Some(names) = body.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                let names = names.split(',').map(|name| name.trim().to_owned()).collect();
                sections.push(Section { names, line: line_number, settings: Vec::new() });
                continue;
            }
            let Some(section) = sections.last_mut() else {
                fault("a setting before the first [section]".to_owned(), "begin with [Main]");
                continue;
            };
            if line.starts_with([' ', '\t'])
                && let Some((_, value)) = section.settings.last_mut()
            {
                value.push('\n');
                value.push_str(body);
                continue;
            }
            match body.split_once([':', '=']) {
                Some((key, value)) => {
                    section.settings.push((key.trim().to_lowercase(), value.trim().to_owned()))
                }
                None => fault("this line has neither \":\" nor \"=\"".to_owned(), "write KEY: VALUE"),
            }
        }
        let mut conf = Self::default();
        for section in sections {
            let line = section.line;
            if let Err(what) = conf.take(section, directory, config_directory) {
                let advice = "give it `map: COMMAND`, which prints the nodes of $GROUP".to_owned();
                faults.push(FileFault { place: place.to_owned(), line, what, advice });
            }
        }
        if faults.is_empty() { Ok(conf) } else { Err(faults) }
    }

    fn take(&mut self, section: Section, directory: &str, config_directory: &str) -> Result<(), String> {
        let get = |key: &str| {
            let found = section.settings.iter().rev().find(|(name, _)| name == key);
            found
                .map(|(_, value)| value.replace("$CFGDIR", config_directory))
                .filter(|value| !value.is_empty())
        };
        if section.names == ["Main"] {
            self.default = get("default");
            self.conf_directories =
                directories(&get("confdir").or_else(|| get("groupsdir")).unwrap_or_default());
            self.auto_directories = directories(&get("autodir").unwrap_or_default());
            return Ok(());
        }
        let Some(map) = get("map") else {
            return Err(format!("group source \"{}\" has no `map`", section.names.join(",")));
        };
        let upcalls = Upcalls {
            map,
            all: get("all"),
            list: get("list"),
            reverse: get("reverse"),
            directory: directory.to_owned(),
        };
        for name in section.names {
            self.sources.push(ConfSource { name, upcalls: upcalls.clone() });
        }
        Ok(())
    }
}

struct Section {
    names: Vec<String>,
    line: usize,
    settings: Vec<(String, String)>,
}

/// Splits `text` at blanks into paths. A path that contains blanks is quoted.
fn directories(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let (mut path, mut quote) = (String::new(), None);
    for sign in text.chars().chain([' ']) {
        match (sign, quote) {
            ('"' | '\'', None) => quote = Some(sign),
            (_, Some(open)) if sign == open => quote = None,
            (_, None) if sign.is_whitespace() => {
                let whole = std::mem::take(&mut path);
                if !whole.is_empty() && !found.contains(&whole) {
                    found.push(whole);
                }
            }
            _ => path.push(sign),
        }
    }
    found
}
