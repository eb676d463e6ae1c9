//! Settings by text: PyTorch's keys, ours, and the policy; from the program or from the
//! environment.
//!
//! This is the one place that reads the environment.

use std::env;
use std::net::{Ipv4Addr, SocketAddr};

use larder_core::allocator::default_config;
use larder_core::config::{Backend, ConfigError};
use larder_core::{Config, Policy};

use super::error::SettingsError;
use super::keeping::Keeping;
pub use super::keeping::PinnedBy;
use super::names::{CAPTURES_KEY, METRICS_KEY, POLICY_KEY, SNAPSHOT_KEY};
pub use super::names::{CONF_VARIABLE as VARIABLE, OWN_KEYS, TORCH_VARIABLES};
use super::text::{key_of, parts, split_key};

/// What an allocator shall be like.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The settings.
    pub config: Config,
    /// The policy.
    pub policy: Policy,
    /// The file that a failed request is written down to, if that is asked for.
    pub oom_snapshot: Option<String>,
    /// How pinned memory of the host is kept.
    pub pinned: Keeping,
    /// The address at which statistics are served to Prometheus, if that is asked for.
    pub metrics: Option<SocketAddr>,
    /// Somebody gave a setting that PyTorch has too. Then all of PyTorch's settings are what they
    /// are in PyTorch; until then they are the policy's defaults.
    names_torch: bool,
    /// Somebody said what memory captures get; until then that is the policy's default too.
    names_captures: bool,
}

impl Settings {
    /// Whether pinned memory is left to PyTorch's own allocator, as it is unless somebody asks for
    /// ours, or for what PyTorch's has not.
    pub fn leaves_pinned(&self) -> bool {
        self.pinned.by.map_or(self.pinned.own_key().is_none(), |by| by == PinnedBy::Torch)
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings::of(Policy::default())
    }
}

/// Reads a settings text on top of the defaults.
pub fn parse(text: &str) -> Result<Settings, SettingsError> {
    Settings::default().overlay(text)
}

/// Reads a settings text as PyTorch would: what it does not name is as in PyTorch, whatever the
/// policy's default is. So a study of settings means the same as a program that is run with them.
pub fn parse_as_torch(text: &str) -> Result<Settings, SettingsError> {
    let stock = Settings { config: Config::default(), names_torch: true, ..Settings::default() };
    stock.overlay(text)
}

/// What the environment says: PyTorch's variable, and ours on top of it.
pub fn from_environment() -> Result<Settings, SettingsError> {
    from_variables(|name| match env::var(name) {
        Ok(text) => Ok(Some(text)),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => Err(SettingsError::NotUnicode(name.to_owned())),
    })
}

fn from_variables(
    value: impl Fn(&str) -> Result<Option<String>, SettingsError>,
) -> Result<Settings, SettingsError> {
    let mut settings = Settings::default();
    for name in TORCH_VARIABLES {
        if let Some(text) = value(name)? {
            settings = settings.overlay(&text).map_err(SettingsError::of(name))?;
            break;
        }
    }
    match value(VARIABLE)? {
        Some(text) => settings.overlay(&text).map_err(SettingsError::of(VARIABLE)),
        None => Ok(settings),
    }
}

/// Fails with a sentence unless the text holds Larder's own settings alone, as in a process with
/// PyTorch, which reads the others itself. `name` says where the text is from.
pub fn check_own(name: &str, text: &str) -> Result<(), SettingsError> {
    let refuse =
        |key: &str| Err(SettingsError::NotOwn { name: name.to_owned(), key: key.to_owned() });
    if let Some(key) = parts(text).filter_map(key_of).find(|key| !OWN_KEYS.contains(key)) {
        return refuse(key);
    }
    let settings = parse(text).map_err(SettingsError::of(name))?;
    // Another mark than a colon may stand behind a key.
    if settings.names_torch { refuse(text) } else { Ok(()) }
}

/// Fails with a sentence if PyTorch's settings ask for what cannot be. PyTorch reads them itself,
/// and may know more of them than we do: what is unknown here is left to it.
pub fn check_torch(name: &str, text: &str) -> Result<(), SettingsError> {
    if let Some(key) = parts(text).filter_map(key_of).find(|key| OWN_KEYS.contains(key)) {
        return Err(SettingsError::Own { name: name.to_owned(), key: key.to_owned() });
    }
    check(name, text).or_else(|_| {
        let is_known = |part: &&str| key_of(part).is_none_or(is_known);
        let known: Vec<&str> = parts(text).filter(is_known).collect();
        check(name, &known.join(","))
    })
}

fn check(name: &str, text: &str) -> Result<(), SettingsError> {
    parse(text).map(drop).map_err(SettingsError::of(name))
}

/// Whether PyTorch's setting of this name is known here. There is none that takes this value.
fn is_known(key: &str) -> bool {
    !matches!(Config::parse(&format!("{key}:?")), Err(ConfigError::UnknownKey { .. }))
}

impl Settings {
    /// What a policy has where nobody gives settings.
    pub fn of(policy: Policy) -> Settings {
        let config = default_config(&policy);
        let (names_torch, names_captures) = (false, false);
        Settings {
            config,
            policy,
            oom_snapshot: None,
            pinned: Keeping::default(),
            metrics: None,
            names_torch,
            names_captures,
        }
    }

    /// These settings under another policy.
    #[must_use]
    pub fn with_policy(mut self, policy: Policy) -> Settings {
        let defaults = default_config(&policy);
        if !self.names_torch {
            self.config.expandable_segments = defaults.expandable_segments;
        }
        if !self.names_torch && !self.names_captures {
            self.config.plain_captures = defaults.plain_captures;
        }
        Settings { policy, ..self }
    }

    /// Reads a settings text on top of these; what it does not name stays as it is.
    pub fn overlay(&self, text: &str) -> Result<Settings, SettingsError> {
        let (snapshot, rest) = split_key(text, SNAPSHOT_KEY)?;
        let (metrics, rest) = split_key(&rest, METRICS_KEY)?;
        let metrics = metrics.map(|text| listening(&text)).transpose()?;
        let (pinned, rest) = self.pinned.overlay(&rest)?;
        let (policy, rest) = split_policy(&rest)?;
        // PyTorch does not look at what stands between a key and its value, so that it need be no
        // colon.
        let is_torchs = |part: &str| key_of(part).is_none_or(|key| !OWN_KEYS.contains(&key));
        let mut named = parts(&rest).filter(|part| !part.trim().is_empty());
        let names_torch = self.names_torch || named.any(is_torchs);
        let names_captures =
            self.names_captures || parts(&rest).filter_map(key_of).any(|key| key == CAPTURES_KEY);
        let mut before = self.config.clone();
        if names_torch && !self.names_torch {
            before.expandable_segments = Config::default().expandable_segments;
        }
        let config = before.overlay(&rest)?;
        if config.backend == Backend::CudaMallocAsync {
            return Err(SettingsError::DriversPool);
        }
        let settings = Settings {
            config,
            policy: self.policy.clone(),
            oom_snapshot: snapshot.or_else(|| self.oom_snapshot.clone()),
            pinned,
            metrics: metrics.or(self.metrics),
            names_torch,
            names_captures,
        };
        let settings = match policy {
            Some(policy) => settings.with_policy(policy),
            None => settings,
        };
        settings.check_known()?;
        Ok(settings)
    }

    /// Fails with a sentence if the PyTorch whose policy decides does not know one of the settings.
    pub fn check_known(&self) -> Result<(), SettingsError> {
        Ok(self.config.check_known(self.policy.torch)?)
    }
}

/// Takes the policy out of a text, and gives back the text without it.
pub fn split_policy(text: &str) -> Result<(Option<Policy>, String), SettingsError> {
    let (name, rest) = split_key(text, POLICY_KEY)?;
    let policy = name.map(|name| name.parse::<Policy>());
    Ok((policy.transpose()?, rest))
}

/// Where to listen: a port of this machine alone, or an address with one.
fn listening(text: &str) -> Result<SocketAddr, SettingsError> {
    let port = text.parse::<u16>().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    port.or_else(|_| text.parse()).map_err(|_| SettingsError::Metrics(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use larder_core::types::MIB;

    use super::*;

    fn from(variables: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        from_variables(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            Ok(found.map(|(_, text)| (*text).to_owned()))
        })
    }

    #[test]
    fn a_snapshot_of_failures_and_metrics_can_be_asked_for() {
        let settings = parse("oom_snapshot:/tmp/{pid}.pickle, metrics:9400,policy:tight").unwrap();
        assert_eq!(settings.oom_snapshot.as_deref(), Some("/tmp/{pid}.pickle"));
        assert_eq!(settings.metrics, Some(SocketAddr::from(([127, 0, 0, 1], 9400))));
        assert_eq!(parse("metrics:0.0.0.0:9400").unwrap().metrics.unwrap().port(), 9400);
        assert!(parse("metrics:often").unwrap_err().to_string().contains("takes a port"));
        assert!(parse("oom_snapshot:").unwrap_err().to_string().contains("wants a value"));
        assert!(parse("metrics:1,metrics:2").unwrap_err().to_string().contains("stands twice"));
        assert_eq!(parse("oom_snapshot:a.json").unwrap().config, Settings::default().config);
        let again = settings.overlay("").unwrap();
        assert_eq!(again.oom_snapshot, settings.oom_snapshot);
    }

    #[test]
    fn pinned_memory_is_left_to_pytorch_unless_somebody_asks_for_ours() {
        let settings = parse("pinned_limit:64GiB,pinned:larder,policy:torch-2.11").unwrap();
        assert_eq!(settings.pinned.limit_bytes, Some(64 << 30));
        assert!(!settings.leaves_pinned(), "that is said");
        assert!(parse("").unwrap().leaves_pinned());
        assert!(!parse("pinned:larder").unwrap().leaves_pinned());
        assert!(parse("policy:torch-2.15").unwrap().leaves_pinned());
        for own in ["pinned_limit:1GiB", "pinned_ahead:1GiB", "pinned_idle_s:60"] {
            let later = parse(own).unwrap().overlay("policy:torch-2.11").unwrap();
            assert!(!later.leaves_pinned(), "PyTorch's own has no {own}");
        }
    }

    #[test]
    fn a_text_has_pytorchs_keys_ours_and_the_policy() {
        let text = "expandable_segments:True, policy:torch-2.11 ,page_size_mb:4,\
                    roundup_power2_divisions:[256:1,512:2,>:4]";
        let settings = parse(text).unwrap();
        assert!(settings.config.expandable_segments);
        assert_eq!(settings.config.page_bytes, Some(4 * MIB));
        assert_eq!(settings.config.roundup_divisions[9], 2);
        assert_eq!(settings.policy, Policy::torch_2_11());
        assert_eq!(parse("").unwrap(), Settings::default());
        assert_eq!(parse("policy:larder").unwrap().policy, Policy::larder());
        assert!(parse("policy:larder,").is_ok());
    }

    #[test]
    fn a_text_that_cannot_be_read_says_which_key() {
        for (text, word) in [
            ("frob:1", "'frob'"),
            ("expandable_segments:1", "'expandable_segments'"),
            ("policy:frob", "'frob'"),
            ("policy:larder,policy:larder", "twice"),
            ("max_split_size_mb:1", "'max_split_size_mb'"),
            ("backend:cudaMallocAsync", "cudaMallocAsync"),
            ("max_split_size_mb", "key:value"),
            (",", "key:value"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn pytorchs_older_name_goes_first_and_ours_comes_on_top() {
        let [old, new] = TORCH_VARIABLES;
        let both = from(&[(old, "max_split_size_mb:64"), (new, "expandable_segments:True")]);
        let both = both.unwrap().config;
        assert_eq!((both.max_split_bytes, both.expandable_segments), (Some(64 * MIB), false));
        let on_top = [
            (new, "max_split_size_mb:64,garbage_collection_threshold:0.5"),
            (VARIABLE, "garbage_collection_threshold:0.8,policy:torch-2.11"),
        ];
        let on_top = from(&on_top).unwrap();
        assert_eq!(on_top.config.max_split_bytes, Some(64 * MIB), "what ours does not name stays");
        assert!((on_top.config.garbage_collection_threshold - 0.8).abs() < 1e-9);
        assert_eq!(on_top.policy, Policy::torch_2_11());
        assert_eq!(from(&[]).unwrap(), Settings::default());
    }

    #[test]
    fn segments_are_expandable_unless_somebody_gives_settings_of_pytorchs() {
        let is_expandable = |text| parse(text).unwrap().config.expandable_segments;
        for text in
            ["", "policy:larder", "page_size_mb:4", "expandable_segments:True", "policy:tight"]
        {
            assert!(is_expandable(text), "{text}");
        }
        for text in [
            "policy:torch-2.11",
            "expandable_segments:False",
            "max_split_size_mb:64",
            "garbage_collection_threshold:0.8,policy:larder",
        ] {
            assert!(!is_expandable(text), "{text}");
        }
        assert!(!parse_as_torch("policy:larder").unwrap().config.expandable_segments);
        assert!(parse_as_torch("expandable_segments:True").unwrap().config.expandable_segments);
        let [torch, _] = TORCH_VARIABLES;
        let given = [(torch, "garbage_collection_threshold:0.8"), (VARIABLE, "policy:larder")];
        assert!(!from(&given).unwrap().config.expandable_segments);
        let ours = from(&[(torch, ""), (VARIABLE, "page_size_mb:4")]).unwrap();
        assert!(ours.config.expandable_segments, "an empty text names none");
        let older =
            parse("policy:torch-2.14,expandable_segments_reserve:0.5").unwrap_err().to_string();
        assert!(older.ends_with("it is known from PyTorch 2.15 on"), "{older}");
        assert!(parse("policy:torch-2.15,expandable_segments_reserve:0.5").is_ok());
        let stock = ours.with_policy(Policy::torch_2_11());
        assert!(!stock.config.expandable_segments);
    }

    #[test]
    fn a_variable_that_cannot_be_read_is_named() {
        let error = from(&[("PYTORCH_ALLOC_CONF", "frob:1")]).unwrap_err().to_string();
        assert!(error.starts_with("PYTORCH_ALLOC_CONF: there is no setting 'frob'"), "{error}");
        let error = from(&[("LARDER_CONF", "policy:frob")]).unwrap_err().to_string();
        assert!(error.starts_with("LARDER_CONF: there is no policy 'frob'"), "{error}");
    }

    #[test]
    fn our_own_settings_are_those_that_pytorch_does_not_have() {
        for text in ["", "policy:torch-2.11", " page_size_mb:4 , policy:larder"] {
            assert_eq!(check_own(VARIABLE, text), Ok(()), "{text}");
        }
        assert_eq!(
            check_own(VARIABLE, "policy:larder, expandable_segments:True").unwrap_err().to_string(),
            "LARDER_CONF: 'expandable_segments' is not one of Larder's own settings, which are \
             policy, page_size_mb, plain_captures, tight_views_percent, tight_soft, tight_most, \
             tight_floor_mb, pinned, pinned_limit, pinned_ahead, pinned_idle_s, oom_snapshot, \
             metrics; PyTorch's settings belong into PYTORCH_CUDA_ALLOC_CONF"
        );
        let list =
            check_own(VARIABLE, "roundup_power2_divisions:[1:2,>:4]").unwrap_err().to_string();
        assert!(list.contains("'roundup_power2_divisions'"), "{list}");
        let odd = check_own(VARIABLE, "max_split_size_mb,40").unwrap_err().to_string();
        assert!(odd.contains("is not one of Larder's own settings"), "{odd}");
        let wrong = check_own(VARIABLE, "policy:frob").unwrap_err().to_string();
        assert!(wrong.starts_with("LARDER_CONF: there is no policy 'frob'"), "{wrong}");
        for key in OWN_KEYS {
            let refused = check_torch("X", &format!("{key}:1")).unwrap_err().to_string();
            assert!(refused.ends_with("which belong into LARDER_CONF"), "{refused}");
        }
        for text in [
            "of_a_later_torch:1,expandable_segments:True",
            "max_split_size_mb:17592186044415",
            "max_split_size_mb:-1,max_split_size_mb:40,",
            "roundup_power2_divisions,[>:2]]garbage_collection_threshold[0.5",
            "max_split_size_mb,40:expandable_segments:True",
            "expandable_segments_reserve:none",
            "expandable_segments_reserve_by_class:[a:1G,policy:2G]",
        ] {
            assert_eq!(check_torch("X", text), Ok(()), "{text}");
        }
        assert!(check_torch("X", "expandable_segments:1").is_err());
    }

    #[test]
    fn the_split_limit_cannot_be_left_below_a_large_segment() {
        let error = from(&[
            ("PYTORCH_ALLOC_CONF", "max_split_size_mb:32"),
            ("LARDER_CONF", "large_segment_size_mb:64"),
        ]);
        assert!(error.unwrap_err().to_string().contains("max_split_size_mb"));
    }
}
