//! The space that is searched: which settings there are, and which values of each are worth a try.

use larder_core::Policy;
use larder_core::config::Config;

use crate::replay::Setup;
use crate::settings::{with_entry, without_key};

/// A setting, and the values of it that are tried beside none.
pub(super) struct Dimension {
    key: &'static str,
    values: &'static [&'static str],
}

const EXPANDABLE: Dimension = Dimension { key: "expandable_segments", values: &["True"] };
const SPLIT_LIMIT: Dimension = Dimension {
    key: "max_split_size_mb",
    values: &["32", "64", "128", "256", "512", "1024", "2048"],
};
const ROUNDING: Dimension =
    Dimension { key: "roundup_power2_divisions", values: &["2", "4", "8", "16", "32"] };
const SEGMENT: Dimension = Dimension {
    key: "large_segment_size_mb",
    values: &["12", "14", "16", "24", "32", "48", "64", "96", "128", "256"],
};
const REMAINDER: Dimension =
    Dimension { key: "max_non_split_rounding_mb", values: &["32", "64", "128", "256"] };
const COLLECTION: Dimension =
    Dimension { key: "garbage_collection_threshold", values: &["0.6", "0.8", "0.9"] };
const PAGE: Dimension = Dimension { key: "page_size_mb", values: &["2", "4", "6", "10"] };
const SOFT: Dimension = Dimension { key: "tight_soft", values: &["1", "1.003", "1.02"] };
const MOST: Dimension = Dimension { key: "tight_most", values: &["1", "1.05"] };
const FLOOR: Dimension = Dimension { key: "tight_floor_mb", values: &["64"] };

/// The settings that can make a difference under a policy.
pub(super) fn dimensions(policy: &Policy, setup: &Setup) -> Vec<Dimension> {
    if policy.tight {
        // It joins pages by itself, whatever segments and splits would be.
        return vec![ROUNDING, PAGE, SOFT, MOST, FLOOR];
    }
    let mut dimensions = vec![EXPANDABLE, SPLIT_LIMIT, ROUNDING, SEGMENT, REMAINDER];
    // Without a cap stock PyTorch does not collect.
    if policy.collect_without_cap || setup.effective_fraction() < 1.0 {
        dimensions.push(COLLECTION);
    }
    if !policy.is_stock() {
        dimensions.push(PAGE);
    }
    dimensions
}

/// Where a search begins: at nothing, and at what people try first.
pub(super) fn beginnings(policy: &Policy) -> Vec<String> {
    if policy.tight {
        vec![String::new()]
    } else {
        vec![String::new(), "expandable_segments:True".to_owned()]
    }
}

/// All settings that differ from these in one of the dimensions and can be.
pub(super) fn neighbours(conf: &str, dimensions: &[Dimension]) -> Vec<String> {
    let mut confs = Vec::new();
    for Dimension { key, values } in dimensions {
        confs.push(without_key(conf, key));
        confs.extend(values.iter().map(|value| with_entry(conf, &format!("{key}:{value}"))));
    }
    confs.retain(|other| other != conf && Config::parse(other).is_ok());
    confs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_differ_in_one_setting_and_can_be_read() {
        let setup = Setup::default();
        let dimensions = dimensions(&Policy::torch_2_11(), &setup);
        let all = neighbours("max_split_size_mb:32", &dimensions);
        assert!(all.contains(&String::new()));
        assert!(all.contains(&"max_split_size_mb:32,expandable_segments:True".to_owned()));
        let conflict = "max_split_size_mb:32,large_segment_size_mb:48";
        assert!(!all.iter().any(|conf| conf == conflict), "larger segments than the split limit");
        assert!(!all.iter().any(|conf| conf.contains("page_size_mb")), "stock PyTorch has none");
        assert!(!all.iter().any(|conf| conf.contains("threshold")), "it does nothing with no cap");
    }

    #[test]
    fn every_value_can_be_read_by_itself() {
        let setup = Setup { fraction: Some(0.5), ..Setup::default() };
        for policy in crate::compare::all_policies(Policy::torch_2_11()) {
            let dimensions = dimensions(&policy, &setup);
            let values: usize = dimensions.iter().map(|dimension| dimension.values.len()).sum();
            // Of each dimension that is not set, its absence is no neighbour.
            assert_eq!(neighbours("", &dimensions).len(), values, "{}", policy.name);
        }
    }
}
