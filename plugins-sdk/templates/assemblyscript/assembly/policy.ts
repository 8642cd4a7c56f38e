/* my-policy: the worker that has the least to compute before the first token. */
import { RouterRequest } from "@yardmaster/policy/assembly";
import { params, table } from "./policy.gen";

export function score(r: RouterRequest, n: i32): bool {
  const prompt = <f32>r.prompt;
  const weight = <f32>params.hitWeight;
  for (let i = 0; i < n; i++) {
    table.score[i] = table.queuedTokens[i] + (prompt - weight * table.hitTokens[i]);
  }
  return true;
}
