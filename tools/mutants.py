"""Would the tests notice? Put one fault after the other into a copy of the package, and run the
test that should catch it.

usage: python tools/mutants.py [--workers 2] [--resume] [words of a fault's name ...]
All faults together leave data/results/mutants.json: each fault, and the test that caught it.
`--resume` goes on with such a file. Each test runs in a fork of one process that has imported
PyTorch and all else that is not of this package, which would take longer than most of the tests.
To add a fault, add a line to FAULTS: what it is, the module, the code as it is, the code with the
fault, and the test that catches it. `make test` checks that every line still applies.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import types
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

# a fork does not survive PyTorch's threads
os.environ.update(OMP_NUM_THREADS="1", MPLBACKEND="agg")

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT/"data"/"results"/"mutants.json"
NEEDED = ("av", "matplotlib.pyplot", "nltk.tokenize", "PIL.Image", "pytest", "torch._dynamo",
          "torch.distributed", "torchvision", "typer")  # what tests and package import


class Fault(NamedTuple):
    "One deliberate mistake."
    what: str
    module: str
    code: str    # occurs once in the module
    wrong: str
    test: str    # the name of the test that catches it, as file::test

    def broken(self) -> str:
        "The module with the fault; code that has changed since is an error that names the fault."
        code = (ROOT/"picknet_nb"/f"{self.module.replace('.', '/')}.py").read_text()
        if (count := code.count(self.code)) != 1:
            raise SystemExit(
                f"{self.what}: its code occurs {count} times in {self.module}; "
                "see FAULTS in tools/mutants.py"
            )
        return code.replace(self.code, self.wrong)


def wired(setting: str) -> str:
    "The test of a setting in the table of `test_wiring.py`."
    return f"test_wiring.py::test_a_setting_acts_where_it_should[{setting}]"


def acts(option: str) -> str:
    "The test of an option of a command, or of an argument, in the table of `test_options.py`."
    return f"test_options.py::test_an_option_acts_wherever_it_is_accepted[{option}]"


FAULTS = [
    Fault("entropy is punished instead of rewarded", "method.stages",
          "- settings.entropy_weight * tried.entropy", "+ settings.entropy_weight * tried.entropy",
          "test_stages.py::test_an_entropy_reward_makes_the_policy_less_certain"),
    Fault("the self-critical baseline is a sampled reward", "method.stages",
          "baseline = totals[-1] if settings", "baseline = totals[0] if settings",
          "test_stages.py::test_the_self_critical_baseline_is_the_reward_of_the_greedy_picks"),
    Fault("scheduled sampling is always off", "method.stages",
          "return min(FEEDBACK_MOST,", "return 0.0 * min(FEEDBACK_MOST,",
          "test_stages.py::test_scheduled_sampling_grows_as_the_settings_say"),
    Fault("the pick limit restarts in stage three", "method.stages",
          "start_epoch(self.config.policy.shrink_epochs + epoch)", "start_epoch(epoch)",
          "test_stages.py::test_stage_three_keeps_the_limit_that_stage_two_ended_with"),
    Fault("stage three is trained on greedy picks", "method.stages",
          "self.sampled, self.beside, self.kept = tried.sampled[0],",
          "self.sampled, self.beside, self.kept = tried.greedy,",
          "test_stages.py::test_stage_three_teaches_the_captioner_on_sampled_picks"),
    Fault("feedback begins again in stage three", "method.stages",
          "self.given_picks, most, epochs)", "self.given_picks, most, 0)",
          "test_stages.py::test_stage_three_goes_on_with_the_feedback_that_stage_one_ended_with"),
    Fault("rewards are remembered after the captioner has learned", "method.stages",
          "if weights != self.weights or len", "if len",
          "test_stages.py::test_only_picks_that_are_new_and_within_the_limits_are_captioned"),
    Fault("supervision_picks is ignored", "training.train",
          "make_picker(\"random\", few) if few else every", "every",
          "test_stages.py::test_stage_one_sees_as_many_random_frames_as_the_settings_say"),
    Fault("rewarded words alone are trained on", "method.extras",
          "(1 - CRITICAL_SHARE) * loss + CRITICAL_SHARE * critical", "critical",
          "test_stages.py::test_rewarded_words_have_nine_tenths_of_the_loss"),
    Fault("stage three has the learning rate of stage one", "training.train",
          "\"adaptation\", own, own, training.adaptation_rate,",
          "\"adaptation\", own, own, training.supervision_rate,",
          "test_stages.py::test_each_stage_learns_at_its_own_rate"),
    Fault("weights are averaged in stage two", "training.loop",
          "training.average_weights and name != \"reinforcement\"", "training.average_weights",
          "test_stages.py::test_the_policy_is_not_averaged_in_stage_two"),
    Fault("consensus is ignored", "method.extras",
          "return None if self.weights is None else self.weights[captions]", "return None",
          "test_stages.py::test_consensus_and_label_smoothing_reach_the_loss"),
    Fault("the threshold is ignored in validation", "training.train",
          "threshold=config.policy.threshold", "threshold=0.5",
          "test_stages.py::test_validation_uses_the_threshold"),
    Fault("gradients are not exchanged between processes", "core.processes",
          "    torch.distributed.all_reduce(flat)\n    flat /= world\n", "",
          "test_stages.py::"
          "test_two_processes_with_half_of_a_batch_each_make_the_step_of_the_whole_batch"),
    Fault("the baseline of the others holds the sample itself", "method.reinforce",
          "(rewards.sum(0) - rewards) / (len(rewards) - 1)", "rewards.mean(0).expand_as(rewards)",
          "test_reinforce.py::test_others"),
    Fault("the policy gradient climbs away from reward", "method.reinforce",
          "return -((reward - baseline)", "return ((reward - baseline)",
          "test_reinforce.py::test_average_of_samples_is_the_exact_gradient"),
    Fault("the diversity weight is ignored", "method.rewards",
          "+ settings.diversity_weight * diversity", "+ diversity",
          "test_rewards.py::test_total_is_the_weighted_sum_or_the_penalty"),
    Fault("the first frame need not be picked", "method.picker_contract",
          "return picks | first if self.forced else picks",
          "return picks", "test_pickers.py::test_a_picker_of_ones_own_keeps_the_rules"),
    Fault("a beam forgets whose state it continues", "method.generation",
          "state = mapped(lambda tensor: tensor[(first + parent).flatten()], state)",
          "state = state",
          "test_captioner.py::test_the_scores_of_a_beam_are_those_of_its_words"),
    Fault("padding is learned from", "method.recurrence",
          "return torch.where(words == PAD, 0, loss), total", "return loss, total",
          "test_properties.py"),
    Fault("MS-RNN pays for the divergence the wrong way round", "systems.ms_rnn",
          "divergence(latents.posterior, latents.prior)",
          "divergence(latents.prior, latents.posterior)", "test_committees.py::"
          "test_ms_rnn_pays_for_the_divergence_of_the_posterior_from_the_prior"),
    Fault("Aalto's evaluator teaches the members", "systems.aalto",
          "videos = torch.cat([part.video for part in memory], -1).detach()",
          "videos = torch.cat([part.video for part in memory], -1)",
          "test_committees.py::test_the_evaluator_teaches_itself_alone"),
    Fault("a model's no_repeats is not used for files", "use.clips",
          "no_repeats=self.decoding.no_repeats", "no_repeats=False", "test_captioning.py::"
          "test_a_file_is_captioned_without_repeats_where_the_model_says_so"),
    Fault("a run's own threshold is not used for files", "use.loading",
          "recipe.make_picker(picks, config.policy.threshold)",
          "recipe.make_picker(picks, 0.5)", "test_captioning.py::"
          "test_a_file_is_captioned_with_the_threshold_that_the_run_was_stored_with"),
    Fault("the green frame of a GIF comes a second late", "use.drawing",
          "any(0 <= since < lasts", "any(0 <= since - 1 < lasts",
          "test_drawing.py::test_the_green_frame_of_a_gif_comes_with_the_picked_picture"),
    Fault("evaluate ignores the model's beam", "interface.python",
          "beam = decoding.beam if beam is None else beam", "beam = 1 if beam is None else beam",
          "test_models.py::test_a_split_is_captioned_as_the_model_was_stored"),
    Fault("the forecast times stage three on all frames", "training.train",
          "own = None if recipe.learns else recipe.make_picker(scorer)",
          "own = None if recipe.learns else every", "test_forecast.py"),
    Fault("a fractional reward weight is multiplied in again", "method.recipes",
          "return replace(self, language=float(self.language != 0),",
          "return replace(self, language=self.language,",
          "test_stages.py::test_a_run_with_half_a_reward_weight_goes_on_as_it_was_begun"),
    Fault("frames is ignored for files", "use.captioning",
          "how = self.config.clip.frames, self.backbone.image_size",
          "how = 30, self.backbone.image_size",
          wired("frames")),
    Fault("glance_size is ignored for files", "use.loading",
          "side = round(details[\"glance_dims\"] ** 0.5) if config", "side = 56 if config",
          wired("glance_size")),
    Fault("glance is ignored for files", "use.loading",
          "** 0.5) if config.clip.glance == \"grey\" else 0", "** 0.5)",
          wired("glance")),
    Fault("min_word_count is ignored", "data.corpus",
          "frequent_words(counts, min_word_count)", "frequent_words(counts, 1)",
          wired("min_word_count")),
    Fault("max_words is ignored in a corpus", "data.corpus",
          "_to_ids(sentences, vocabulary, settings.max_words),",
          "_to_ids(sentences, vocabulary, 16),",
          wired("max_words")),
    Fault("max_words is ignored for files", "use.clips",
          "        return self.config.clip.max_words\n", "        return 20\n",
          wired("max_words")),
    Fault("a model's beam is not used for files", "use.clips",
          "beam = self.decoding.beam if beam is None else beam",
          "beam = 1 if beam is None else beam",
          wired("decoding.beam")),
    Fault("a recipe's number of frames is ignored", "method.recipes",
          "make_picker(self.picker, self.picks, trained",
          "make_picker(self.picker, self.picks and 6, trained",
          wired("recipe.picks")),
    Fault("every recipe is adapted", "training.train",
          "    if recipe.adapted and (", "    if True and (",
          wired("recipe.adapted")),
    Fault("a recipe's own captioner is ignored", "method.recipes",
          "config = with_captioner(config, self.architecture) if self.architecture else config",
          "config = config",
          wired("recipe.architecture")),
    Fault("weight_decay is ignored", "training.loop",
          "0.0 if isinstance(part, Policy) else self.training.weight_decay", "0.0",
          wired("weight_decay")),
    Fault("stage two has the learning rate of stage three", "training.train",
          "\"reinforcement\", None, None, training.reinforcement_rate,",
          "\"reinforcement\", None, None, training.adaptation_rate,",
          wired("reinforcement_rate")),
    Fault("word epochs have the learning rate of stage one", "training.train",
          "\"words\", picker, every, training.adaptation_rate,",
          "\"words\", picker, every, training.supervision_rate,",
          wired("adaptation_rate")),
    Fault("stage three lasts as long as stage one", "training.train",
          "training.adaptation_rate, training.adaptation_epochs",
          "training.adaptation_rate, training.supervision_epochs",
          wired("adaptation_epochs")),
    Fault("penalty is ignored on a CPU", "method.stages",
          "inside, penalty = within_limits(picks, settings.min_picks, max_picks), settings.penalty",
          "inside, penalty = within_limits(picks, settings.min_picks, max_picks), -1.0",
          wired("penalty")),
    Fault("label_smoothing is ignored", "method.stages",
          "caption_loss(logits, words, self.config.training.label_smoothing,",
          "caption_loss(logits, words, 0.0,",
          wired("label_smoothing")),
    Fault("rollouts is ignored", "method.stages",
          "self.policy.explore(self.corpus.glances[videos], self.config.policy.rollouts)",
          "self.policy.explore(self.corpus.glances[videos], 4)",
          wired("rollouts")),
    Fault("video_vector is ignored", "method.captioner_contract",
          "settings.video_vector)", "\"last\")",
          wired("video_vector")),
    Fault("input_dropout is ignored", "method.captioner_contract",
          "settings.dropout, output_gate, settings.input_dropout,",
          "settings.dropout, output_gate, 0.0,",
          wired("input_dropout")),
    Fault("mention_weight is ignored", "method.extras",
          "loss = loss + self.config.captioner.mention_weight * missed",
          "loss = loss + 0.1 * missed",
          wired("mention_weight")),
    Fault("clock is ignored", "method.stages",
          "config.policy.policy_hidden, config.policy.clock)", "config.policy.policy_hidden)",
          wired("clock")),
    Fault("varied_picks is ignored", "training.train",
          "picker = make_picker(\"varied\") if training.varied_picks else picker",
          "picker = picker",
          wired("varied_picks")),
    Fault("start_from hands nothing over", "training.train",
          "if learned and not trainer.stored: learned.hand_over(model, config, corpus)", "pass",
          wired("start_from")),
    Fault("keep is ignored", "training.loop",
          "if better or trainer.config.training.keep == \"last\":", "if better:",
          wired("keep")),
    Fault("the reward's name is ignored", "method.custom_rewards",
          "REWARDS.find(settings.reward)(settings, corpus)",
          "REWARDS.find(\"paper\")(settings, corpus)",
          wired("reward")),
    Fault("feedback_every is ignored", "method.stages",
          "(epoch // training.feedback_every)", "epoch",
          wired("feedback_every")),
    Fault("every epoch has the batches of the first", "training.loop",
          "seed = seed_of(training.seed, STAGES.index(stage), epoch)",
          "seed = seed_of(training.seed, STAGES.index(stage), 0)",
          "test_training.py::test_every_epoch_has_batches_of_its_own"),
    Fault("several processes train on the same clips", "training.loop",
          "return batches_of(trainer.corpus, training, stage, seed, trainer.share)",
          "return batches_of(trainer.corpus, training, stage, seed)",
          "test_training.py::test_processes_share_the_clips_of_an_epoch"),
    Fault("the policy is started for its final limit", "training.train",
          "wanted = (config.policy.min_picks + config.policy.first_max_picks) / 2",
          "wanted = (config.policy.min_picks + config.policy.final_max_picks) / 2",
          "test_training.py::test_the_policy_starts_in_the_middle_of_its_first_limits"),
    Fault("validation counts clips outside the limits", "training.train",
          "Validation(corpus, config, validated, limited=learned)",
          "Validation(corpus, config, validated)", "test_stages.py::"
          "test_validation_penalises_clips_outside_the_limits_where_picks_are_learned"),
    Fault("extraction continues with other weights", "data.extraction",
          "        \"weights\": cnn.weights,\n", "",
          "test_extraction.py::test_a_corpus_does_not_mix_backbones"),
    Fault("a frontier's captioner is not trained on varied picks", "measure.frontier",
          "config.changed(seed=seed, varied_picks=True)", "config.changed(seed=seed)",
          "test_reproduction.py::test_the_captioner_of_a_frontier_is_trained_on_varied_picks"),
    Fault("the explorer measures diversity in the unit of a blank corpus", "use.exploration",
          "        reward.diversity_scale = viewing.diversity_scale"
          "  # of this clip: the corpus is blank\n", "",
          "test_explorer.py::test_diversity_is_measured_in_random_picks_of_the_clip_itself"),
    Fault("a stream never forgets failures", "use.streams",
          "time, arrived, failures = began + passed, monotonic(), 0",
          "time, arrived = began + passed, monotonic()",
          "test_streaming.py::test_failures_are_forgotten_once_frames_arrive_again"),
    Fault("a picker without a policy takes a threshold", "use.clips",
          "        if picker.policy is None:\n", "        if False:\n",
          "test_streaming.py::test_a_picker_without_a_policy_has_no_threshold"),
    Fault("an evaluation is decoded by another function than files", "method.captioner",
          "return beam(captioner, memory, beam_size, max_words, no_repeats=no_repeats)[0][:, 0]",
          "return beam_search(captioner, memory, beam_size, max_words, no_repeats).words[:, 0]",
          "test_wiring.py::test_files_are_decoded_as_in_an_evaluation"),
    Fault("captions without <eos> are recognised by their length", "training.diagnostics",
          "sum(EOS not in row for row in rows) / count",
          "sum(len(each) >= 20 for each in captions) / count",
          "test_signs.py::test_words_are_counted_before_they_are_joined"),
    Fault("a leftover folder stops a run that is resumed", "training.runs",
          "    sweep(folder, inside=True)\n",
          "    for left in folder.glob(\".*.partial\"): left.unlink()\n",
          "test_training.py::test_what_a_kill_left_half_written_goes"),
    Fault("caption --threshold is ignored for subtitles", "interface.watch",
          "dict(beam=beam, threshold=threshold), run_folder", "dict(beam=beam), run_folder",
          acts("caption --threshold")),
    Fault("reproduce --beam is ignored", "interface.reproduce",
          "        changes,\n        beam or (1,),", "        changes,\n        (1,),",
          acts("reproduce --beam")),
    Fault("a stream remembers scenes that are over", "use.streams",
          "if self.scene and self.scene.begins(frame): self._begin_scene()", "",
          "test_streaming.py::test_a_stream_forgets_where_the_scene_changes"),
    Fault("stream --no-forget is ignored", "interface.watch",
          "window=window, forget=forget)) as", "window=window)) as",
          acts("stream --forget")),
    Fault("stream --window is ignored", "interface.watch",
          "rate, window=window, forget", "rate, forget",
          acts("stream --window")),
    Fault("caption --weights is ignored for a table", "interface.watch",
          "weights=str(weights) if weights else None,", "weights=None,",
          acts("caption --weights")),
    Fault("caption --best is ignored", "interface.watch",
          "as_json, best=best, **how", "as_json, **how",
          acts("caption --best")),
    Fault("caption --beam is ignored for a table", "interface.watch",
          "if weights else None, beam=beam,\n", "if weights else None,\n",
          acts("caption --beam")),
    Fault("rows are captioned with the model's own threshold", "use.many",
          "replace(captioner.picking(self.threshold), readers=readers)",
          "replace(captioner, readers=readers)",
          acts("caption --threshold")),
    Fault("a cluster captions with the model and none of the options", "use.cluster",
          "    specification = specification.absolute()\n",
          "    specification = Specification(specification.absolute().model)\n",
          acts("caption --picker")),
    Fault("caption --again is ignored", "interface.watch",
          "specification, ray or False, again=again)", "specification, ray or False)",
          acts("caption --again")),
    Fault("limits are not sent to the captioners of a cluster", "use.cluster",
          "given = lambda share: (specification, share.cores, limits_here())",
          "given = lambda share: (specification, share.cores, {})",
          "test_options.py::test_limits_hold_on_a_cluster[caption]"),
    Fault("limits are not sent to the extractors of a cluster", "use.cluster",
          "given = lambda share: (backbone, shape, share.cores, limits_here())",
          "given = lambda share: (backbone, shape, share.cores, {})",
          "test_options.py::test_limits_hold_on_a_cluster[prepare videos]"),
    Fault("a finished table is not in the order of the list", "use.tables",
          "order = dict.fromkeys([*sources, *rows])", "order = rows",
          "test_many.py::test_a_list_becomes_a_table_and_is_continued"),
    Fault("a stored row without a caption counts as done", "use.tables",
          "row[\"error\"] is None)\n            for row in self._stored()",
          "True)\n            for row in self._stored()",
          "test_many.py::test_a_row_without_a_caption_is_tried_again_though_its_file_is_the_same"),
    Fault("a new row without a caption counts as captioned", "use.tables",
          "                Identity(row[\"size\"], row[\"version\"]), row[\"error\"] is None)\n"
          "        self.rows += rows",
          "                Identity(row[\"size\"], row[\"version\"]), True)\n"
          "        self.rows += rows",
          "test_many.py::test_a_passing_failure_is_tried_again_and_the_status_says_so"),
    Fault("a table is continued by any model of the same name", "use.many",
          "digest = model_digest(folder, *(network.weights for network in networks))",
          "digest = folder.name",
          "test_options.py::test_a_table_is_continued_by_the_model_itself_and_not_by_its_name"),
    Fault("a table is continued with another eye", "use.many",
          "networks = [captioner.backbone, *([captioner.eye] if captioner.eye else [])]",
          "networks = [captioner.backbone]",
          "test_eyes.py::test_what_made_a_row_has_the_threshold_and_the_eye"),
    Fault("a stream ignores the budget of a scorer", "use.loading",
          "trained=trained._replace(streaming=None)", "trained=trained",
          "test_eyes.py::test_a_stream_cannot_have_the_frames_of_a_scorer_that_was_asked_for"),
    Fault("the explorer ignores how many frames a scorer is to pick", "use.exploration",
          "return make_picker(own.name, self.frames, own.policy, own.threshold)",
          "return own",
          "test_eyes.py::test_the_page_follows_the_budget_and_shows_the_values"),
    Fault("a run on few clips learns another scorer", "training.scorers",
          "if fits and len(corpus.splits[\"train\"]) < FEW:",
          "if fits and len(corpus.splits[\"train\"]) < 0:",
          "test_eyes.py::test_a_run_on_few_clips_keeps_the_scorer_that_it_begins_with"),
    Fault("stream --rate is ignored where a source is opened again", "use.streams",
          "frames = stream_frames(opened, rate, size, time_limit, format, options)",
          "frames = stream_frames(opened, 1.0, size, time_limit, format, options)",
          acts("stream --rate")),
    Fault("the page of explore loads the usual weights", "use.server",
          "\"captions\": captions, \"weights\": weights}", "\"captions\": captions}",
          acts("explore --weights")),
    Fault("evaluate --no-repeats is ignored", "interface.python",
          "measure_row(trained, corpus, config, recipe, (beam,), split, no_repeats)",
          "measure_row(trained, corpus, config, recipe, (beam,), split)",
          acts("evaluate --no-repeats")),
    Fault("compare --set is ignored", "measure.comparison",
          "own_changes(scale, name) | (changes or {}))", "own_changes(scale, name))",
          acts("compare --set")),
    Fault("compare --set architecture makes all captioners one", "measure.comparison",
          "if \"architecture\" in (changes or {}):", "if False:",
          acts("compare --set")),
    Fault("--captioner silently replaces --set architecture", "core.settings",
          "if changes.get(setting, part) != part:", "if False:",
          acts("train --captioner")),
    Fault("frontier --seeds is ignored", "measure.frontier",
          "for seed in range(first, first + seeds)", "for seed in range(first, first + 1)",
          acts("frontier --seeds")),
    Fault("prepare --workers is ignored on a cluster", "use.cluster",
          "batches = on_ray(cluster, RayExtractor, given, columns, workers)",
          "batches = on_ray(cluster, RayExtractor, given, columns)",
          acts("prepare videos --workers")),
    Fault("workers of compare do not import the modules of --use", "measure.comparison",
          "crew = Workers.open(data, scale, workers, device, modules, bars)",
          "crew = Workers.open(data, scale, workers, device, (), bars)",
          acts("picknet --use")),
    Fault("train --resume changes no numbers of epochs", "interface.train",
          "    config = check_changes(config, changes)\n",
          "    config = config if started else check_changes(config, changes)\n",
          acts("train --set")),
    Fault("pn.caption_many ignores its picker", "interface.python",
          "None if picker is None else PICKERS.name_of(picker),\n", "None,\n",
          acts("pn.caption_many picker")),
    Fault("pn.caption_many ignores its device", "interface.python",
          "rows_here(sources, specification.load(device=device))",
          "rows_here(sources, specification.load())",
          acts("pn.caption_many device")),
    Fault("pn.reproduce takes a device for a cluster", "interface.python",
          "    check_device(device, ray)\n    if ray and workers",
          "    if ray and workers",
          acts("pn.reproduce device")),
    Fault("pn.train forgets the weights of the backbone", "interface.python",
          "return Run(folder, device, weights)", "return Run(folder, device)",
          acts("pn.train weights")),
    Fault("pn.evaluate does not check its weights", "interface.python",
          "            check_same_weights(weights, known, what)\n", "            pass\n",
          acts("pn.evaluate weights")),
    Fault("prepare join --more-training is ignored", "interface.prepare",
          "replace(parts[0].settings, **changes), more_training), {}, []",
          "replace(parts[0].settings, **changes)), {}, []",
          acts("prepare join --more-training")),
    # chosen after the table of options was complete; four of them were not caught then
    Fault("caption --frames is ignored for a table", "use.many",
          "        captioner = with_frames(captioner, self.frames)\n", "",
          acts("caption --frames")),
    Fault("stream --frames is ignored", "interface.watch",
          "_, captioner = open_model(chosen, weights, picker, frames)",
          "_, captioner = open_model(chosen, weights, picker)",
          acts("stream --frames")),
    Fault("the page of explore ignores the captions", "use.page",
          "Library(videos, captions)", "Library(videos)",
          acts("explore --captions")),
    Fault("export --threshold is not stored", "training.models",
          "        config = at_threshold(config, recipe, threshold)\n", "",
          acts("export --threshold")),
    Fault("evaluate --eye is ignored", "interface.evaluate",
          "            eye=eye,\n", "",
          acts("evaluate --eye")),
    Fault("train --picks is ignored", "training.train",
          "recipe = recipes(picks or 6)[name]", "recipe = recipes(6)[name]",
          acts("train --picks")),
    Fault("compare --beam is ignored", "measure.comparison",
          "            tuple(beams),\n", "            (1,),\n",
          acts("compare --beam")),
    Fault("the usual folder of frontier ignores the preset", "interface.reproduce",
          "frontier_folder(data, scale)", "frontier_folder(data, \"small\")",
          acts("frontier --preset")),
    Fault("pn.load leaves the backbone on the CPU", "use.loading",
          "details, weights, device)\n        eye", "details, weights, \"cpu\")\n        eye",
          acts("pn.load device")),
    Fault("pn.prepare extracts here what the eye sees, not on the cluster", "interface.python",
          "*how, extract=extract)\n    # None", "*how)\n    # None",
          "test_options.py::test_what_an_eye_sees_is_prepared_with_the_same_options[pn.prepare]"),
]


def copy_package(source: Path, folder: Path) -> None:
    "Copy the package, the tests and the example clip."
    for name in ("picknet_nb", "tests", "tools"):
        shutil.copytree(source/name, folder/name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder/"data").mkdir()
    shutil.copy(source/"data"/"example.mp4", folder/"data")


def run(tests: list[str], folder: Path) -> int:
    "A process that runs these tests on the package of a folder; what pytest says goes there."
    if process := os.fork():
        return process
    status = 2
    try:
        said = os.open(folder/"said.txt", os.O_WRONLY | os.O_CREAT)
        for stream in (1, 2): os.dup2(said, stream)
        os.chdir(folder)
        os.environ["PYTHONPATH"] = sys.path[0] = str(folder)
        # a process that a test spawns would read this file again
        sys.modules["__main__"] = types.ModuleType("__main__")
        status = import_module("pytest").main(
            ["-x", "-q", "--no-header", "-p", "no:cacheprovider",
             f"--basetemp={folder/'written'}", *(f"tests/{test}" for test in tests)])
        sys.stdout.flush()
    finally:
        os._exit(status)


def failed(tests: list[str], folder: Path, status: int) -> str:
    "The test that failed in a process that ended so; nothing if all passed."
    if not status:
        return ""
    said = (folder/"said.txt").read_text(errors="replace")
    if not (found := re.search(r"^FAILED (.+?)(?: - .*)?$", said, re.M)):
        raise SystemExit(f"{tests} did not run:\n{said[-4000:]}")
    return found[1]


def tried(faults: dict[Fault, str], source: Path, workers: int):
    "Each fault with the test that fails with it (nothing if it passes), as the tests end."
    waiting, running = list(faults.items()), {}
    while waiting or running:
        while waiting and len(running) < workers:
            (fault, broken), folder = waiting.pop(0), Path(tempfile.mkdtemp(dir=source.parent))
            copy_package(source, folder)
            (folder/"picknet_nb"/f"{fault.module.replace('.', '/')}.py").write_text(broken)
            running[run([fault.test], folder)] = fault, folder
        process, status = os.wait()
        fault, folder = running.pop(process)
        yield fault, failed([fault.test], folder, status)
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only faults whose names have all of these words")
    parser.add_argument("--workers", type=int, default=2, help="faults that are tried at once")
    parser.add_argument("--resume", action="store_true",
                        help="do not try again what data/results/mutants.json says was caught")
    options = parser.parse_args()
    stored = json.loads(OUT.read_text())["list"] if options.resume and OUT.exists() else []
    known = {fault.what for fault in FAULTS}
    found = {each["fault"]: each for each in stored if each["caught"] and each["fault"] in known}
    chosen = [fault for fault in FAULTS if all(word in fault.what for word in options.words)]
    todo = {fault: fault.broken() for fault in chosen if fault.what not in found}
    here = circumstances()
    for name in NEEDED:
        with suppress(ImportError): import_module(name)  # whoever needs it will say so
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)/"source"  # what is edited meanwhile is not tried
        copy_package(ROOT, source)
        tests = sorted({fault.test for fault in todo})
        if todo and (failing := failed(tests, source, os.waitpid(run(tests, source), 0)[1])):
            raise SystemExit(f"a test fails without any fault: {failing}")
        for fault, test in tried(todo, source, options.workers):
            found[fault.what] = {
                "fault": fault.what, "module": fault.module, "test": fault.test,
                "caught": bool(test), "failed": test, "commit": here["commit"]}
            print(f"{'caught' if test else 'NOT CAUGHT':10}  {fault.what:60}  {test}", flush=True)
            if not options.words:
                write(found, here)
    count = sum(found[fault.what]["caught"] for fault in chosen)
    print(f"\n{count} of {len(chosen)} faults caught")
    sys.exit(count < len(chosen))


def circumstances() -> dict:
    "Where and with what the tests run, asked of another process: a fork must not know the package."
    code = ("import json\nfrom picknet_nb.measure.experiments import circumstances\n"
            "print(json.dumps(circumstances()))")
    return json.loads(subprocess.check_output([sys.executable, "-c", code], cwd=ROOT))


def write(found: dict[str, dict], here: dict) -> None:
    "Store what became of every fault so far, in the order of the list."
    entries = [found[fault.what] for fault in FAULTS if fault.what in found]
    result = {"command": "python tools/mutants.py", "faults": len(FAULTS), "tried": len(entries),
              "caught": sum(each["caught"] for each in entries),
              **here, "commit": sorted({each["commit"] for each in entries}), "list": entries}
    unfinished = OUT.with_suffix(".partial")
    unfinished.write_text(json.dumps(result, indent=1) + "\n")
    unfinished.replace(OUT)


if __name__ == "__main__":
    main()
