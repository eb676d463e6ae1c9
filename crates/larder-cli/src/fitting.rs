//! The command `fit`.

use larder_study::card::Card;
use larder_study::lineup::lineup;
use larder_study::question::Question;
use larder_study::report::fitted;
use larder_study::sizes::Sizes;
use larder_study::{fit, margin};

use crate::args::Common;
use crate::progress::Bars;
use crate::{Refusal, Task, name, print, print_text, set_up_by, stopped, unposed};

/// Says how much memory it needs, and on which of these cards it runs.
pub(crate) fn fit_command(
    common: &Common,
    conf: Option<&str>,
    (sizes, passes): (Sizes, u64),
    cards: &[Card],
) -> Result<(), Refusal> {
    common.room.refuse_part("fit says how much memory it needs, whatever was recorded")?;
    let Task { workload, settings, setup, .. } =
        set_up_by(common, conf, sizes, Question::pose_fit)?;
    let failed = |error| stopped(common, &workload, &error);
    let fit = fit::fit(&workload, &setup, passes, &Bars::default()).map_err(failed)?;
    let margin = margin::margin(&workload, &setup, &fit, &Bars::default()).map_err(failed)?;
    let text = fitted::fitted(&name(common), &workload, &setup, &settings, (&fit, &margin));
    let question = common.question(conf.map(|_| settings.clone()));
    let places = match cards {
        [] => Vec::new(),
        _ => lineup(&workload, &question, cards, &Bars::default())
            .map_err(|error| unposed(common, &workload, &error))?,
    };
    let cards_text = if cards.is_empty() { String::new() } else { fitted::lineup(&places) };
    let runs_refused = margin.refused.is_some_and(|refused| refused.memory_bytes.is_some());
    if fit.memory_bytes.is_none() && !runs_refused && cards.is_empty() {
        let next = match common.room.memory {
            Some(_) => "leave --memory out to find out how much it needs, or give more",
            None => "give --memory with more",
        };
        return Err(Refusal::Input(format!("{}; {next}", text.trim_end())));
    }
    if common.json {
        let mut found = fitted::json(&workload, &setup, &fit, &margin);
        if !cards.is_empty() {
            found["cards"] = fitted::lineup_json(&places);
        }
        print(&found)
    } else {
        print_text(&(text + &cards_text))
    }
}
