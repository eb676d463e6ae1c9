//! Settings: those of a run, as a person gave them or as the program was recorded with them.

use std::fmt;

use larder_core::Policy;
use larder_core::config::{ALLOCATOR_KEYS, Backend, Config, ConfigError};

use crate::workload::Workload;

/// The setting that caps a program at a part of the device.
pub(crate) const FRACTION_KEY: &str = "per_process_memory_fraction";

/// The settings of a run, and where they come from.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The settings as a text; empty for the default.
    pub conf: String,
    /// The settings.
    pub config: Config,
    /// Where they come from.
    pub origin: Origin,
}

/// Where settings come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A person gave them.
    Given,
    /// Nobody gave any, and no recording has any.
    Nowhere,
    /// The program was recorded with them.
    Recorded,
    /// The program was recorded with them and a memory fraction, which is left out.
    RecordedButFraction,
    /// The program was recorded with others that no run here can have; why, in a clause.
    Unreadable(SettingsError),
}

/// Why no run here can have some settings.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingsError {
    /// The text cannot be read.
    Unreadable(ConfigError),
    /// They ask for the driver's own allocator.
    DriversPool,
    /// The PyTorch whose policy decides does not know one of them.
    Unknown {
        /// A person gave them; otherwise the program was recorded with them.
        is_given: bool,
        /// Which one.
        error: ConfigError,
    },
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingsError::Unreadable(error) => error.fmt(f),
            SettingsError::DriversPool => write!(
                f,
                "backend:cudaMallocAsync is the driver's own allocator, which a simulated GPU does \
                 not have"
            ),
            SettingsError::Unknown { is_given: true, error } => write!(f, "--conf: {error}"),
            SettingsError::Unknown { is_given: false, error } => {
                write!(f, "the recorded settings: {error}")
            }
        }
    }
}

impl std::error::Error for SettingsError {}

impl From<ConfigError> for SettingsError {
    fn from(error: ConfigError) -> SettingsError {
        SettingsError::Unreadable(error)
    }
}

impl Chosen {
    /// Fails with a sentence if they are unknown to the PyTorch whose policy decides.
    pub fn check_known(&self, policy: &Policy) -> Result<(), SettingsError> {
        let is_given = self.origin == Origin::Given;
        let known = self.config.check_known(policy.torch);
        known.map_err(|error| SettingsError::Unknown { is_given, error })
    }

    /// Settings that a person gave.
    pub fn given(conf: &str, config: Config) -> Chosen {
        Chosen { conf: conf.trim_matches([',', ' ']).to_owned(), config, origin: Origin::Given }
    }

    /// Those that the program was recorded with; the default where there are none, or none that a
    /// simulated GPU can have.
    pub fn recorded(workload: &Workload) -> Chosen {
        let default = |origin| Chosen { conf: String::new(), config: Config::default(), origin };
        match recorded_config(workload) {
            None => default(Origin::Nowhere),
            Some(Err(why)) => default(Origin::Unreadable(why)),
            Some(Ok(config)) => {
                let conf = config.text.clone();
                Chosen { conf, config, origin: Origin::Recorded }
            }
        }
    }

    /// These without a memory fraction that was recorded: for who asks how large a card must be, it
    /// is in the way. What a person gave stays.
    #[must_use]
    pub fn without_recorded_fraction(self) -> Chosen {
        if self.origin != Origin::Recorded || !names_fraction(&self.config) {
            return self;
        }
        let conf = without_fraction(&self.conf);
        match Config::parse(&conf) {
            Ok(config) => Chosen { conf, config, origin: Origin::RecordedButFraction },
            Err(_) => self,
        }
    }

    /// What a heading says of them.
    pub fn in_words(&self) -> String {
        let what = match self.origin {
            Origin::Recorded => "settings as recorded",
            Origin::RecordedButFraction => "settings as recorded, without the memory fraction",
            _ if self.conf.is_empty() => return "default settings".to_owned(),
            _ => return self.conf.clone(),
        };
        match (self.conf.as_str(), &self.origin) {
            ("", Origin::Recorded) => "default settings, as recorded".to_owned(),
            ("", _) => what.to_owned(),
            (conf, _) => format!("{what}: {conf}"),
        }
    }

    /// Says of recorded settings that are not used why they are not, in a line.
    pub fn remark(&self) -> String {
        match &self.origin {
            Origin::Unreadable(why) => format!(
                "the recorded settings are not used, because {why}; these are the defaults, and \
                 --conf gives others\n"
            ),
            _ => String::new(),
        }
    }
}

/// The settings that the program was recorded with, if it was with any; or why no run here can have
/// them.
pub(crate) fn recorded_config(workload: &Workload) -> Option<Result<Config, SettingsError>> {
    let conf = workload.recorded_conf()?;
    Some(read_recorded(conf))
}

fn read_recorded(conf: &str) -> Result<Config, SettingsError> {
    let config = Config::parse(conf)?;
    if config.backend != Backend::Native {
        return Err(SettingsError::DriversPool);
    }
    // A cap that held all the same was set by a call, and is not lifted by settings that name none.
    if config.memory_fraction >= 1.0 && names_fraction(&config) {
        return Ok(Config::parse(&without_fraction(conf))?);
    }
    Ok(config)
}

/// Whether settings say what part of the device the program may have, be it all of it.
pub(crate) fn names_fraction(config: &Config) -> bool {
    names_key(config, FRACTION_KEY)
}

/// Whether settings name this key, whatever they say of it.
pub(crate) fn names_key(config: &Config, key: &str) -> bool {
    entries(&config.text).iter().any(|entry| key_of(entry) == key)
}

/// How many settings a text has.
pub(crate) fn entry_count(conf: &str) -> usize {
    entries(conf).len()
}

/// A settings text without the memory fraction.
pub(crate) fn without_fraction(conf: &str) -> String {
    without_key(conf, FRACTION_KEY)
}

/// A settings text without this key.
pub(crate) fn without_key(conf: &str, key: &str) -> String {
    let mut entries = entries(conf);
    entries.retain(|entry| key_of(entry) != key);
    entries.join(",")
}

/// The entry of this key in a settings text, if it has one.
pub(crate) fn entry_of<'a>(conf: &'a str, key: &str) -> Option<&'a str> {
    entries(conf).into_iter().rfind(|entry| key_of(entry) == key)
}

/// A settings text with this entry, in the place of another of its key.
pub(crate) fn with_entry(conf: &str, entry: &str) -> String {
    let rest = without_key(conf, key_of(entry));
    if rest.is_empty() { entry.to_owned() } else { format!("{rest},{entry}") }
}

/// The variables of the environment that settings and a policy are set by, each with its text.
pub fn variables(policy: &Policy, conf: &str) -> Vec<(&'static str, String)> {
    let (mut ours, mut torchs) = split_own(conf);
    // Where nobody gives settings of PyTorch's, the policy has a default that is not PyTorch's.
    if torchs.is_empty() && policy.expandable_by_default && !policy.tight {
        torchs.push("expandable_segments:False");
    }
    // They are always on under the policy tight; and together they are what a policy of ours does
    // by itself.
    let has_defaults = ours.contains(&"plain_captures:True")
        && (policy.tight || torchs == ["expandable_segments:True"])
        && policy.expandable_by_default;
    if has_defaults {
        ours.retain(|entry| key_of(entry) != "plain_captures");
    }
    if policy.tight || has_defaults {
        torchs.retain(|entry| key_of(entry) != "expandable_segments");
    }
    let is_larders = !policy.is_stock() || !ours.is_empty();
    let policy = is_larders.then(|| format!("policy:{}", policy.name));
    let ours: Vec<String> = policy.into_iter().chain(ours.into_iter().map(str::to_owned)).collect();
    let variables =
        [("PYTORCH_CUDA_ALLOC_CONF", torchs.join(",")), ("LARDER_CONF", ours.join(","))];
    variables.into_iter().filter(|(_, conf)| !conf.is_empty()).collect()
}

/// The keys of a settings text that are Larder's own, which stock PyTorch does not have.
pub(crate) fn own_keys(conf: &str) -> Vec<&str> {
    split_own(conf).0.into_iter().map(key_of).collect()
}

/// The parts of a settings text that are Larder's own, and those that are PyTorch's.
pub(crate) fn split_own(conf: &str) -> (Vec<&str>, Vec<&str>) {
    entries(conf).into_iter().partition(|entry| ALLOCATOR_KEYS.contains(&key_of(entry)))
}

/// The parts of a settings text. A comma in brackets parts nothing.
fn entries(conf: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let parts = conf.split(move |letter| {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty()).collect()
}

fn key_of(entry: &str) -> &str {
    entry.split_once(':').map_or(entry, |(key, _)| key.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::Recording;

    fn recorded(conf: Option<&str>) -> Workload {
        Workload::from(Recording { conf: conf.map(str::to_owned), ..Recording::default() })
    }

    #[test]
    fn a_recording_brings_its_settings() {
        let words = |conf| Chosen::recorded(&recorded(conf)).in_words();
        assert_eq!(words(None), "default settings");
        assert_eq!(words(Some("")), "default settings, as recorded");
        let conf = "expandable_segments:True";
        assert_eq!(words(Some(conf)), format!("settings as recorded: {conf}"));
        assert!(Chosen::recorded(&recorded(Some(conf))).config.expandable_segments);
        assert_eq!(Chosen::recorded(&Workload::default()).origin, Origin::Nowhere);
    }

    #[test]
    fn settings_that_no_run_here_can_have_are_the_defaults_and_a_sentence() {
        for (conf, word) in [
            ("of_a_later_torch:1", "there is no setting 'of_a_later_torch'"),
            ("backend:cudaMallocAsync", "the driver's own allocator"),
        ] {
            let chosen = Chosen::recorded(&recorded(Some(conf)));
            assert_eq!((&chosen.config, chosen.conf.as_str()), (&Config::default(), ""));
            let remark = chosen.remark();
            assert!(remark.contains(word) && remark.contains("these are the defaults"), "{remark}");
            assert_eq!(chosen.in_words(), "default settings");
        }
    }

    #[test]
    fn a_recorded_fraction_can_be_left_out_and_a_given_one_stays() {
        let conf = "roundup_power2_divisions:[256:1,>:4], per_process_memory_fraction:0.5";
        let chosen = Chosen::recorded(&recorded(Some(conf))).without_recorded_fraction();
        let rest = "roundup_power2_divisions:[256:1,>:4]";
        assert_eq!(chosen.config, Config::parse(rest).expect("settings"));
        let words = format!("settings as recorded, without the memory fraction: {rest}");
        assert_eq!(chosen.in_words(), words);
        let given = Chosen::given(conf, Config::parse(conf).expect("settings"));
        assert!(names_fraction(&given.without_recorded_fraction().config));
    }

    #[test]
    fn a_fraction_of_all_names_one_but_lifts_no_cap_that_a_call_set() {
        let config = |conf| Config::parse(conf).expect("settings");
        assert!(names_fraction(&config("per_process_memory_fraction:1")));
        assert!(!names_fraction(&config("expandable_segments:True")));
        let chosen = Chosen::recorded(&recorded(Some("per_process_memory_fraction:1.0")));
        assert!(!names_fraction(&chosen.config));
    }

    #[test]
    fn settings_of_our_own_are_told_apart() {
        assert_eq!(own_keys("expandable_segments:True, page_size_mb:2"), ["page_size_mb"]);
        assert!(own_keys("max_split_size_mb:40").is_empty());
    }
}
