"""The gradient of the reward: exact on small clips, silent where nothing can be learned, and a
policy that learns."""
import pytest
import torch
from torch.testing import assert_close

from picknet_nb.method.policy import Policy
from picknet_nb.method.reinforce import all_picks, expected_reward, others_baseline, policy_loss


def toy(frames=5, seed=0):
    torch.manual_seed(seed)
    glances = torch.randint(0, 256, (1, frames, 12), dtype=torch.uint8)
    policy = Policy(12, 16).double().calibrate(glances, wanted=frames / 2, spread=1.0)
    return policy, glances


def flat(gradients):
    return torch.cat([gradient.flatten() for gradient in gradients])


def test_every_set_of_picks_once():
    every = all_picks(6)
    assert every.shape == (32, 6) and every[:, 0].all() and len(every.unique(dim=0)) == 32
    assert all_picks(1).tolist() == [[True]]


@pytest.mark.parametrize("baseline", ["none", "greedy", "others"])
def test_average_of_samples_is_the_exact_gradient(baseline):
    policy, glances = toy()
    every = all_picks(5)
    worth = torch.randn(5, dtype=torch.float64)
    rewards = (every * worth).sum(1)
    exact = -flat(
        torch.autograd.grad(
            expected_reward(policy.log_probability(glances, every[:, None])[:, 0], rewards),
            list(policy.parameters()),
        )
    )
    tried = policy.explore(glances, 30_000)
    gained, greedy = (tried.sampled * worth).sum(-1), (tried.greedy * worth).sum(-1)
    # many clips with few rollouts each would be the use; groups of four samples are the same thing
    if baseline == "others":
        groups = gained.view(4, -1)
        base = others_baseline(groups).view(-1, 1)
    else:
        base = greedy if baseline == "greedy" else torch.zeros(())
    estimate = flat(
        torch.autograd.grad(
            policy_loss(tried.log_probability, gained, base), list(policy.parameters())
        )
    )
    assert (estimate - exact).norm() < 0.15 * exact.norm()
    assert (-estimate - exact).norm() > 1.8 * exact.norm()  # the sign printed in the paper


def test_rewards_get_no_gradient():
    log_p = torch.zeros(3, requires_grad=True)
    reward = torch.ones(3, requires_grad=True)
    policy_loss(log_p, reward, reward.mean()).backward()
    assert reward.grad is None


def test_equal_rewards_are_silence():
    policy, glances = toy()
    tried = policy.explore(glances, 4)
    equal = torch.full((4, 1), 2.5, dtype=torch.float64)
    policy_loss(tried.log_probability, equal, others_baseline(equal)).backward()
    assert all((parameter.grad == 0).all() for parameter in policy.parameters())


def test_one_frame_has_nothing_to_learn():
    policy, glances = toy(frames=1)
    tried = policy.explore(glances, 3)
    policy_loss(tried.log_probability, torch.randn(3, 1), torch.zeros(())).backward()
    assert all((parameter.grad == 0).all() for parameter in policy.parameters())


def test_others():
    rewards = torch.randn(5, 7)
    for rollout in range(5):
        rest = [other for other in range(5) if other != rollout]
        assert_close(others_baseline(rewards)[rollout], rewards[rest].mean(0))
    with pytest.raises(ValueError, match="two rollouts"):
        others_baseline(rewards[:1])


def test_argmax_learns_to_see_the_change_that_counts():
    """Bright flashes are worth something, dark ones cost: no change detector can tell, a trained
    policy can."""
    torch.manual_seed(0)
    clips, frames = 24, 12
    glances = torch.full((clips, frames, 16), 120, dtype=torch.uint8)
    worth = torch.full((clips, frames), -0.1)
    for clip in range(clips):
        bright, dark = torch.randperm(frames - 1)[:4].add(1).split(2)
        glances[clip, bright], glances[clip, dark] = 220, 20
        worth[clip, bright], worth[clip, dark] = 1.0, -1.0
    policy = Policy(16, 32).calibrate(glances, wanted=5)
    earned = lambda picks: (picks * worth)[..., 1:].sum(-1)
    before = earned(policy.rollout(glances)).mean().item()
    optimiser = torch.optim.Adam(policy.parameters(), 1e-2)
    for _ in range(150):
        tried = policy.explore(glances, 4)
        gained = earned(tried.sampled)
        optimiser.zero_grad()
        policy_loss(tried.log_probability, gained, others_baseline(gained)).backward()
        optimiser.step()
    after = earned(policy.rollout(glances)).mean().item()
    assert after > before + 1
